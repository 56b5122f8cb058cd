"""What the commands do, as functions: explain photos, compare methods, examine a model."""
