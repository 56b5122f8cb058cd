"""Detectors, segmentations, encoders and models of prompts: exact, and as the model itself says."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import dmbp
from dmbp.errors import InputError, ModelError, WeightsError
from dmbp.models import Classifier, hugging_face_classifier, load_model
from dmbp.models.hugging_face import read_preprocessing
from dmbp.targets import Box, NamedTarget, QueryBoxes, Region, Similarity, TargetContext, find_boxes
from tests.models.transformers_folders import (
    LABELS,
    LONGEST_PROMPT,
    MODELS,
    SIDE,
    make,
    make_tokenizer,
    save,
    transformers,
)
from tests.tolerance import FLOAT32, FLOAT64, relative

PROMPTS = ("a cat", "a photo of a dog")


@cache
def classifier(name: str) -> Classifier:
    """A model in float64."""
    model = make(name).double()
    tokenizer = make_tokenizer() if name in ("clip", "siglip") else None
    return hugging_face_classifier(model, MODELS[name][1](), tokenizer=tokenizer, name=name)


def images(count: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)


@torch.no_grad()
def own_outputs(name: str, inputs: Tensor) -> Tensor:
    """What the model itself returns, from its own forward."""
    model: Any = make(name).double()
    if name in ("clip", "siglip"):
        padding = {"padding": "max_length", "max_length": LONGEST_PROMPT}
        tokens = make_tokenizer()(
            list(PROMPTS),
            return_tensors="pt",
            **(padding if name == "siglip" else {"padding": True}),
        )
        mask = {} if name == "siglip" else {"attention_mask": tokens["attention_mask"]}
        return model(input_ids=tokens["input_ids"], pixel_values=inputs, **mask).logits_per_image
    returned = model(pixel_values=inputs)
    if name == "dinov2":
        return returned.pooler_output
    if name == "segformer":
        return returned.logits
    return torch.cat([returned.logits, returned.pred_boxes], -1)


TARGETS: Mapping[str, NamedTarget | int] = {
    "clip": 1,
    "siglip": 0,
    "detr": Box(0),
    "conditional_detr": Box(0),
    "yolos": Box(0),
    "segformer": Region(2, box=(0, 0, 16, 16)),
    "dinov2": Similarity(torch.arange(16.0)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_every_kind_is_exact(name: str) -> None:
    found, inputs, target = classifier(name), images(), TARGETS[name]
    if name in ("clip", "siglip"):
        found = found.with_prompts(PROMPTS)
    with torch.no_grad():
        outputs = found.module(inputs)
    outputs = getattr(outputs, "logits", outputs)
    assert relative(outputs, own_outputs(name, inputs)) <= FLOAT64
    if isinstance(target, NamedTarget):
        details: dict[str, Any] = {} if found.boxes is None else {"boxes": found.boxes}
        target = target.bind(TargetContext(outputs[0], (SIDE, SIDE), details=details))
    d = dmbp.DMBP(found.module, preset="fast", iterations=2).explain(inputs, target=target)
    assert d.exactness <= FLOAT64
    expected = outputs[0, target] if isinstance(target, int) else target(outputs[0])
    assert relative(d.output, expected) <= FLOAT64
    terms = d.positive_output + d.negative_output + d.nuisance_output
    assert relative(terms, d.output) <= FLOAT64
    assert d.attribution.abs().max() > 0


def test_prompts_are_classes() -> None:
    found = classifier("clip")
    assert (found.is_encoder, found.classes, found.asked) == (True, None, ())
    several = found.with_prompts([*PROMPTS, PROMPTS[0]])
    assert (several.classes, several.activation) == (PROMPTS, "softmax")
    assert (several.is_encoder, several.asked) == (False, ("0", "1"))
    single = found.with_prompts(PROMPTS[:1])
    assert (single.is_encoder, single.asked) == (True, ("similarity:prompt=a cat",))
    sigmoid = classifier("siglip").with_prompts(PROMPTS[:1])
    assert (sigmoid.classes, sigmoid.activation) == (("a cat",), "sigmoid")


def test_the_encoder_of_texts_is_left_out_of_what_is_explained() -> None:
    found = classifier("clip").with_prompts(PROMPTS)
    names = {name for name, _ in found.module.named_parameters()}
    assert any("vision_model" in name for name in names)
    assert not any("text" in name for name in names)


def test_a_text_is_embedded_as_the_model_does() -> None:
    embed = classifier("clip").embed
    assert embed is not None
    model: Any = make("clip").double()
    tokens = make_tokenizer()(["a cat"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model.get_text_features(input_ids=tokens).pooler_output[0]
    assert relative(embed("a cat"), expected) <= FLOAT64


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (" ", "a prompt is empty: give a text such as"),
        ("caf\udce9", "has bytes that are not UTF-8"),
        ("a " * 20, f"has 22 tokens, and clip takes at most {LONGEST_PROMPT}: shorten it"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_one_sentence(prompt: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        classifier("clip").with_prompts([prompt, "a cat"])


def test_a_model_that_has_no_texts_or_compares_them_in_another_way() -> None:
    with pytest.raises(ModelError, match="dinov2 has no encoder of texts: prompts are for models"):
        classifier("dinov2").with_prompts(PROMPTS)
    bare = hugging_face_classifier(make("clip"), MODELS["clip"][1](), name="bare")
    with pytest.raises(ModelError, match="bare has no tokenizer, which prompts need"):
        bare.with_prompts(PROMPTS)
    model: Any = make("clip")
    del model.logit_scale
    other = hugging_face_classifier(model, MODELS["clip"][1](), tokenizer=make_tokenizer())
    with pytest.raises(ModelError, match="CLIPModel does not compare images and prompts by their"):
        other.with_prompts(PROMPTS)


@pytest.mark.parametrize("name", ["detr", "conditional_detr"])
def test_boxes_are_those_of_the_image_processor(name: str) -> None:
    """Conditional DETR gives each class a probability of its own, DETR has one for "no object"."""
    found, inputs = classifier(name), images()
    assert found.boxes is not None
    assert found.classes == LABELS
    with torch.no_grad():
        returned = make(name).double()(pixel_values=inputs)
        strongest = find_boxes(found.module(inputs)[0], (SIDE, 2 * SIDE), found.boxes)[0]
    processor = MODELS[name][1]()
    (expected,) = processor.post_process_object_detection(
        returned, threshold=0.0, target_sizes=[(SIDE, 2 * SIDE)]
    )
    best = int(expected["scores"].argmax())
    assert strongest.index == int(expected["labels"][best])
    assert strongest.probability == pytest.approx(float(expected["scores"][best]), abs=FLOAT32)
    assert strongest.corners == pytest.approx(expected["boxes"][best].tolist(), abs=1e-3)


def test_a_ranked_querys_box_is_found_again() -> None:
    """On a changed image the same place may have another rank."""
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([[0.2, 0.2, 0.2, 0.2], [0.7, 0.7, 0.3, 0.3], [0.5, 0.2, 0.2, 0.2]])
    outputs = torch.cat([torch.randn(3, 4, generator=generator), boxes], 1)
    for is_ranked in (True, False):
        layout = QueryBoxes(4, is_ranked=is_ranked)
        context = TargetContext(outputs, (SIDE, SIDE), details={"boxes": layout})
        bound = Box(0).bind(context)
        is_same = bool(bound(outputs[[2, 0, 1]]) == bound(outputs))
        assert is_same is is_ranked


def test_an_encoder_without_its_pooler_gives_the_first_token(tmp_path: Path) -> None:
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    config.update({"image_size": SIDE, "patch_size": 8, "intermediate_size": 32})
    model = transformers.ViTModel(config).eval()
    model.save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(
        tmp_path / "vit"
    )
    inputs = images().float()
    with torch.no_grad():
        returned = model(inputs)
        whole = load_model(str(tmp_path / "vit"))
        assert whole.is_encoder
        assert relative(whole.module(inputs), returned.pooler_output) <= FLOAT32
        weights = load_file(tmp_path / "vit" / "model.safetensors")
        kept = {key: tensor for key, tensor in weights.items() if not key.startswith("pooler")}
        save_file(kept, tmp_path / "vit" / "model.safetensors", {"format": "pt"})
        headless = load_model(str(tmp_path / "vit")).module
        assert relative(headless(inputs), returned.last_hidden_state[:, 0]) <= FLOAT32
    first = next(iter(kept))
    del kept[first]
    save_file(kept, tmp_path / "vit" / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match="lack 1 parameters of an encoder, first"):
        load_model(str(tmp_path / "vit"))


PROCESSORS: Mapping[str, Any] = {
    "long side limited": lambda: transformers.DetrImageProcessor(
        size={"shortest_edge": 120, "longest_edge": 150}
    ),
    "long side alone": lambda: transformers.EomtImageProcessor(
        size={"shortest_edge": 150, "longest_edge": 150}
    ),
    "multiples": lambda: transformers.YolosImageProcessor(
        size={"shortest_edge": 120, "longest_edge": 200}
    ),
}


@pytest.mark.parametrize("case", PROCESSORS)
@pytest.mark.parametrize("size", [(310, 470), (400, 150)])
def test_photos_keep_their_shape_as_the_processor_does(case: str, size: tuple[int, int]) -> None:
    processor = PROCESSORS[case]()
    found = read_preprocessing(processor)
    assert found.fit == "whole"
    photo = Image.effect_noise((size[0] // 10, size[1] // 10), 90).convert("RGB")
    photo = photo.resize(size, Image.Resampling.BICUBIC)
    theirs = processor(photo, return_tensors="pt")["pixel_values"]
    ours = found.tensor(found.view(photo))
    assert ours.shape == theirs.shape
    levels = 255 * (ours - theirs).abs() * torch.tensor(found.std).view(-1, 1, 1)
    assert float(levels.max()) <= 2.01  # two ways of rounding
    assert found.frame(size).view == (ours.shape[3], ours.shape[2])
    assert {"longest": found.longest}.items() <= found.as_dict().items()


def test_no_code_beside_a_tokenizer_is_run(tmp_path: Path) -> None:
    folder = save("clip", tmp_path)
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'code-was-run')!r}, 'w')")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["mine.Tokenizer", "mine.Tokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_model(str(folder)).with_prompts(PROMPTS).classes == PROMPTS
    assert not (tmp_path / "code-was-run").exists()


def test_a_backbone_of_timm_by_name_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the configs of DETR on the hub, which also say that its weights be downloaded."""
    pytest.importorskip("timm")
    sizes = {f"{part}_layers": 1 for part in ("encoder", "decoder")}
    config = transformers.DetrConfig(
        backbone="test_resnet", d_model=16, num_queries=3, use_pretrained_backbone=False, **sizes
    )
    model = transformers.DetrForObjectDetection(config).eval()
    model.save_pretrained(tmp_path)
    MODELS["detr"][1]().save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    del table["backbone_config"]
    named = {"use_timm_backbone": True, "backbone": "test_resnet", "use_pretrained_backbone": True}
    table |= {**named, "backbone_kwargs": {"in_chans": 3, "out_indices": [1, 2, 3, 4]}}
    (tmp_path / "config.json").write_text(json.dumps(table))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    inputs = torch.randn(1, 3, 2 * SIDE, 2 * SIDE)
    with torch.no_grad():
        found, expected = load_model(str(tmp_path)).module(inputs), model(inputs)
    assert relative(found[..., :-4], expected.logits) <= FLOAT32
    assert relative(found[..., -4:], expected.pred_boxes) <= FLOAT32
