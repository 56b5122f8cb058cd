"""Train the embedded default model by distilling a ResNet50 teacher on PASCAL VOC2012 at 160×160.

    python scripts/train_default.py --output voc160.safetensors

Distillation on identical images: a round draws a pool of augmented and mixed images, has the
teacher label exactly those, and passes over the pool in random order. The student learns the
teacher's logits and, spatially, its class scores and its last feature map, the latter through a
linear projection that is discarded afterwards. No human labels and no val images are used. The
result is an exponential moving average of the student's weights.

`--minutes` stops a run early; the same command continues it from its checkpoint.

Beyer et al., "Knowledge distillation: A good teacher is patient and consistent", CVPR 2022.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from augmentation import augment
from muon import Muon
from teacher import FEATURE_CHANNELS, Teacher, load_teacher
from teacher import INPUT_SIZE as TEACHER_INPUT_SIZE
from torch import Tensor, nn
from voc160 import mean_average_precision, normalise, predict, read_images, read_labels
from weights import write_weights

from dmbp.models.voc160 import CLASSES, INPUT_SIZE, SmallResNet

# Feature maps of student (10×10) and teacher (7×7) are compared after averaging to this grid.
GRID = 5
LABELLING_BATCH = 1024
MUON_LEARNING_RATE, MUON_WEIGHT_DECAY = 0.02, 0.01
ADAMW_LEARNING_RATE, ADAMW_WEIGHT_DECAY = 2e-3, 0.01
WARM_UP = 0.02
AVERAGE_DECAY = 0.999
LOGIT_WEIGHT, SCORE_MAP_WEIGHT, FEATURE_WEIGHT = 0.1, 0.1, 0.1
# Augmentation weakens over this part of the run, so that the end looks like what users pass in.
STRONG_UNTIL, WEAK_FROM, WEAK_STRENGTH = 0.7, 0.95, 0.3
# The two spatial terms guide the student early and leave its capacity to the logits at the end.
FINAL_SPATIAL_FACTOR = 0.2


@dataclass
class Labels:
    """The teacher's outputs for a batch of images."""

    logits: Tensor  # (image, 20)
    score_maps: Tensor  # (image, GRID, GRID, 20)
    features: Tensor  # (image, GRID, GRID, 2048)


@dataclass
class Pool:
    """Augmented images, uint8 (image, height, width, channel), and their labels."""

    images: Tensor
    labels: Labels


class Distillation(nn.Module):
    """The student, the projection to the teacher's features, and the loss between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.student = SmallResNet()
        self.projection = nn.Linear(self.student.fc.in_features, FEATURE_CHANNELS)
        self.register_buffer("logit_variance", torch.ones(()))
        self.register_buffer("score_variance", torch.ones(()))
        self.register_buffer("feature_mean", torch.zeros(FEATURE_CHANNELS))
        self.register_buffer("feature_deviation", torch.ones(FEATURE_CHANNELS))
        for module in self.student.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def measure(self, labels: Labels) -> None:
        """Measure the scale of each kind of label, so that the loss's terms are relative errors."""
        features = labels.features.flatten(0, 2)
        self.logit_variance.copy_(labels.logits.var())
        self.score_variance.copy_(labels.score_maps.var())
        self.feature_mean.copy_(features.mean(0, dtype=torch.float32))
        deviation = (features - self.feature_mean.to(features.dtype)).float().std(0)
        self.feature_deviation.copy_(deviation.clamp(min=0.1 * float(deviation.mean())))

    def forward(
        self,
        images: Tensor,
        logits: Tensor,
        score_maps: Tensor,
        features: Tensor,
        spatial_factor: Tensor,
    ) -> Tensor:
        student = self.student
        inputs = normalise(images.permute(0, 3, 1, 2))
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            feature_map = student.features(inputs)
            student_logits = student.fc(feature_map.mean((2, 3))).float()
            grid = F.avg_pool2d(feature_map, feature_map.shape[-1] // GRID).permute(0, 2, 3, 1)
            student_score_maps = student.fc(grid).float()
            student_features = self.projection(grid).float()

        cross_entropy = F.binary_cross_entropy_with_logits(student_logits, logits.sigmoid())
        logit_error = F.mse_loss(student_logits, logits) / self.logit_variance
        score_error = F.mse_loss(student_score_maps, score_maps) / self.score_variance
        teacher_features = (features.float() - self.feature_mean) / self.feature_deviation
        feature_error = F.mse_loss(student_features, teacher_features)
        spatial_error = SCORE_MAP_WEIGHT * score_error + FEATURE_WEIGHT * feature_error
        return cross_entropy + LOGIT_WEIGHT * logit_error + spatial_factor * spatial_error


class Optimisers:
    """Muon for the hidden convolutions, AdamW for everything else, one schedule for both."""

    def __init__(self, distillation: Distillation) -> None:
        hidden = list(distillation.student.stages.parameters())
        convolutions = [parameter for parameter in hidden if parameter.ndim == 4]
        chosen = {id(parameter) for parameter in convolutions}
        others = [p for p in distillation.parameters() if id(p) not in chosen]
        groups = [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": ADAMW_WEIGHT_DECAY},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ]
        muon = Muon(convolutions, learning_rate=MUON_LEARNING_RATE, weight_decay=MUON_WEIGHT_DECAY)
        adamw = torch.optim.AdamW(groups, lr=ADAMW_LEARNING_RATE)
        self.all = {"muon": muon, "adamw": adamw}
        self.peaks = {"muon": MUON_LEARNING_RATE, "adamw": ADAMW_LEARNING_RATE}

    def step(self, progress: float) -> None:
        """Step at the learning rate for this progress (0..1), and clear gradients."""
        factor = min(1.0, progress / WARM_UP + 0.01) * (1 + math.cos(math.pi * progress)) / 2
        for name, optimiser in self.all.items():
            for group in optimiser.param_groups:
                group["lr"] = self.peaks[name] * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, dict]:
        return {name: optimiser.state_dict() for name, optimiser in self.all.items()}

    def load_state_dict(self, state: dict[str, dict]) -> None:
        for name, optimiser in self.all.items():
            optimiser.load_state_dict(state[name])


class WeightAverage:
    """An exponential moving average of a model's weights and batch-norm statistics."""

    def __init__(self, model: SmallResNet) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.steps = 0

    @torch.no_grad()
    def update(self, model: SmallResNet) -> None:
        self.steps += 1
        decay = min(AVERAGE_DECAY, self.steps / (self.steps + 20))
        torch._foreach_lerp_(_floating(self.model), _floating(model), 1 - decay)


def _floating(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in model.state_dict().values() if tensor.is_floating_point()]


@torch.no_grad()
def label(teacher: Teacher, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, score maps and features of uint8 images (image, height, width, channel)."""
    size = (TEACHER_INPUT_SIZE, TEACHER_INPUT_SIZE)
    inputs = F.interpolate(normalise(images.permute(0, 3, 1, 2)), size, mode="bilinear")
    dtype = teacher.conv1.weight.dtype
    feature_map = teacher.features(inputs.to(dtype, memory_format=torch.channels_last))
    logits = teacher.fc(feature_map.float().mean((2, 3)))
    features = F.adaptive_avg_pool2d(feature_map, GRID).permute(0, 2, 3, 1)
    return logits, teacher.fc(features.float()), features


def empty_pool(size: int, device: torch.device, dtype: torch.dtype) -> Pool:
    """Allocate a pool, about 180 kB an image."""
    grid = (size, GRID, GRID)
    labels = Labels(
        logits=torch.empty(size, len(CLASSES), device=device),
        score_maps=torch.empty(*grid, len(CLASSES), device=device),
        features=torch.empty(*grid, FEATURE_CHANNELS, device=device, dtype=dtype),
    )
    images = torch.empty(size, INPUT_SIZE, INPUT_SIZE, 3, device=device, dtype=torch.uint8)
    return Pool(images, labels)


@torch.no_grad()
def fill_pool(
    pool: Pool,
    sources: Tensor,
    *,
    labeller: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    generator: torch.Generator,
    strength: float,
) -> None:
    """Overwrite the pool with newly augmented images and the teacher's labels for them."""
    for start in range(0, len(pool.images), LABELLING_BATCH):
        part = slice(start, min(start + LABELLING_BATCH, len(pool.images)))
        count = part.stop - part.start
        chosen = torch.randint(len(sources), (count,), generator=generator, device=sources.device)
        images = augment(sources[chosen], generator, strength=strength)
        pool.images[part] = images.permute(0, 2, 3, 1)
        logits, score_maps, features = labeller(pool.images[part])
        pool.labels.logits[part] = logits
        pool.labels.score_maps[part] = score_maps
        pool.labels.features[part] = features


def shuffled_batches(
    size: int, *, passes: int, batch_size: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield indices into the pool, `passes` times over; an incomplete last batch is dropped."""
    for _ in range(passes):
        order = torch.randperm(size, generator=generator, device=generator.device)
        for start in range(0, size - batch_size + 1, batch_size):
            yield order[start : start + batch_size]


def augmentation_strength(progress: float) -> float:
    """Return 1 until STRONG_UNTIL, then fall linearly to WEAK_STRENGTH at WEAK_FROM."""
    weakened = (progress - STRONG_UNTIL) / (WEAK_FROM - STRONG_UNTIL)
    return 1 - (1 - WEAK_STRENGTH) * min(1.0, max(0.0, weakened))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the embedded default model.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="voc160 folder")
    parser.add_argument(
        "--teacher", type=Path, default=Path("../shared/models"), help="the teacher's folder"
    )
    parser.add_argument("--output", type=Path, default=Path("distilled.safetensors"))
    parser.add_argument("--checkpoint", type=Path, default=Path("voc160_checkpoint.pt"))
    parser.add_argument("--rounds", type=int, default=290, help="pools in the whole run")
    parser.add_argument("--pool-size", type=int, default=32768, help="images in a pool")
    parser.add_argument("--passes", type=int, default=2, help="passes over each pool")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop and save after")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile")
    return parser.parse_args()


def main() -> None:
    started = time.monotonic()
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32

    sources = [read_images(arguments.data, split)[1] for split in ("train", "unlabelled")]
    sources = torch.cat(sources).to(device)
    val_names, val_images = read_images(arguments.data, "val")
    val_images, val_labels = val_images.to(device), read_labels(arguments.data, val_names)
    print(f"{len(sources)} images to train on, {len(val_images)} to evaluate on", flush=True)

    teacher = load_teacher(arguments.teacher).to(device)
    teacher_logits = predict(teacher, val_images, size=TEACHER_INPUT_SIZE)
    print(f"teacher's mAP {mean_average_precision(teacher_logits, val_labels):.4f}", flush=True)
    for name, module in teacher.named_children():
        if name != "fc":
            module.to(precision, memory_format=torch.channels_last)

    distillation = Distillation().to(device).train()
    student = distillation.student
    parameters = sum(parameter.numel() for parameter in student.parameters())
    print(f"student of {parameters / 1e6:.2f} M parameters", flush=True)
    optimisers = Optimisers(distillation)
    average = WeightAverage(student)
    first_round = 0
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, map_location=device)
        distillation.load_state_dict(state["distillation"])
        optimisers.load_state_dict(state["optimisers"])
        average.model.load_state_dict(state["average"])
        average.steps = state["steps"]
        first_round = state["round"]
        print(f"continuing after {first_round} rounds", flush=True)

    def labeller(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return label(teacher, images)

    loss_of: Callable[..., Tensor] = distillation
    if not arguments.no_compile:
        labeller = torch.compile(labeller, dynamic=False)
        loss_of = torch.compile(distillation, dynamic=False)

    pool = empty_pool(arguments.pool_size, device, precision)
    steps = arguments.passes * (arguments.pool_size // arguments.batch_size)
    finished = first_round
    for finished in range(first_round + 1, arguments.rounds + 1):
        before = time.monotonic()
        generator = torch.Generator(device).manual_seed(arguments.seed + finished)
        strength = augmentation_strength(finished / arguments.rounds)
        fill_pool(pool, sources, labeller=labeller, generator=generator, strength=strength)
        if finished == 1:
            distillation.measure(pool.labels)
        between = time.monotonic()

        total = torch.zeros((), device=device)
        batches = shuffled_batches(
            arguments.pool_size,
            passes=arguments.passes,
            batch_size=arguments.batch_size,
            generator=generator,
        )
        for step, chosen in enumerate(batches):
            progress = (finished - 1 + step / steps) / arguments.rounds
            spatial_factor = 1 - (1 - FINAL_SPATIAL_FACTOR) * progress
            loss = loss_of(
                pool.images[chosen],
                pool.labels.logits[chosen],
                pool.labels.score_maps[chosen],
                pool.labels.features[chosen],
                torch.full((), spatial_factor, device=device),
            )
            loss.backward()
            optimisers.step(progress)
            average.update(student)
            total += loss.detach()
        mean_loss = float(total) / steps
        after = time.monotonic()

        if finished <= 5 or finished % 10 == 0:
            print(
                f"round {finished}/{arguments.rounds}: loss {mean_loss:.4f}, labelling "
                f"{between - before:.1f} s, training {after - between:.1f} s, "
                f"{after - started:.0f} s in all",
                flush=True,
            )
        if after - started > 60 * arguments.minutes:
            break

    state = {
        "distillation": distillation.state_dict(),
        "optimisers": optimisers.state_dict(),
        "average": average.model.state_dict(),
        "steps": average.steps,
        "round": finished,
    }
    torch.save(state, arguments.checkpoint)
    reached = mean_average_precision(predict(average.model, val_images), val_labels)
    write_weights(average.model, arguments.output, mean_average_precision=reached)
    print(f"after {finished} of {arguments.rounds} rounds: mAP {reached:.4f}", flush=True)


if __name__ == "__main__":
    main()
