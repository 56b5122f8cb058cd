"""Running a plan: the driver, the workers and the pools they live in."""
