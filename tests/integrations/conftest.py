"""Lightning and transformers import torchvision, which with a CPU build of torch needs help."""

from dmbp.models.torchvision_models import import_torchvision

import_torchvision()
