"""What all engines share: the steps of a linear network as operations with transposes."""
