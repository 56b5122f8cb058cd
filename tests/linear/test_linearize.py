"""Whatever state the model and torch are in: it works or says one clear sentence."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import CaptureError, InexactCapture, InputError, ModelError, UnsupportedOperation
from dmbp.linear.linearizer import Linearizer
from dmbp.linear.lines import ElementwiseLine
from dmbp.linear.rules.gates import GATES, Gate
from tests import nets
from tests.tolerance import relative

IMAGES = (2, 3, 16, 16)


def state_of(model: nn.Module) -> list[object]:
    """All that must be as it was: values, gradients wanted, mode, hooks."""
    return [
        *((n, p.detach().clone(), p.requires_grad, p.grad) for n, p in model.named_parameters()),
        *((n, b.clone()) for n, b in model.named_buffers()),
        *((n, m.training, dict(m._forward_hooks)) for n, m in model.named_modules()),
        *(
            (n, dict(m._backward_hooks), dict(m.__dict__["_modules"]))
            for n, m in model.named_modules()
        ),
    ]


def same(before: list[object], after: list[object]) -> bool:
    flat = zip(before, after, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for one, two in flat
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("make", [nets.ResidualNet, nets.InPlaceNet, nets.ReusedNet])
def test_the_model_leaves_as_it_came(make: type[nn.Module]) -> None:
    model = make().eval()
    next(model.parameters()).requires_grad_(False)
    model.register_forward_hook(lambda *_: None)
    before = state_of(model)
    dmbp.linearize(model, torch.randn(IMAGES), target=1).pullback()
    assert same(before, state_of(model))


def test_a_model_in_training_mode_is_explained_in_evaluation_mode() -> None:
    model = nets.ResidualNet()
    model.bn2.eval()
    inputs = torch.randn(IMAGES)
    before = state_of(model)
    with pytest.warns(UserWarning, match="training mode"):
        value = dmbp.linearize(model, inputs, target=1).value()
    assert same(before, state_of(model))
    assert torch.equal(value, model.eval()(inputs)[:, 1])


def test_the_mode_is_restored_after_an_exception() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nets.Spectral(), nn.Flatten()).train()
    before = state_of(model)
    with pytest.warns(UserWarning, match="training mode"), pytest.raises(CaptureError):
        dmbp.linearize(model, torch.randn(IMAGES), target=1)
    assert same(before, state_of(model))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_may_be_switched_off(context: type) -> None:
    inputs = torch.randn(IMAGES)
    model = nets.ResidualNet().eval()
    expected = dmbp.linearize(model, inputs, target=1).pullback()
    with context():
        assert torch.equal(dmbp.linearize(model, inputs.clone(), target=1).pullback(), expected)


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = nets.ResidualNet().eval()
        inputs = torch.randn(IMAGES)
    with pytest.raises(ModelError, match=r"made in torch.inference_mode.*copy.deepcopy"):
        dmbp.linearize(model, inputs, target=1)
    net = dmbp.linearize(copy.deepcopy(model), inputs, target=1)  # as the sentence says
    assert net.pullback().shape == IMAGES


def test_another_dtype_gets_a_sentence() -> None:
    with pytest.raises(
        InputError, match=r"float64 but the model's 'a.weight' is torch.float32; use"
    ):
        dmbp.linearize(nets.FunctionalNet().eval(), torch.randn(IMAGES).double(), target=1)


def test_another_device_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"on cpu but the model's 'a.weight' is on meta; use"):
        dmbp.linearize(nets.FunctionalNet().eval().to("meta"), torch.randn(IMAGES), target=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = nets.ResidualNet().to(dtype).eval()
    net = dmbp.linearize(model, torch.randn(IMAGES, dtype=dtype), target=1)
    assert net.value().dtype == dtype
    assert net.pullback().dtype == dtype


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (torch.full(IMAGES, torch.nan), "contain NaN"),
        (torch.zeros(IMAGES, dtype=torch.int64), "floating point"),
        (torch.zeros(0, 3, 16, 16), r"no image in inputs of shape \(0, 3, 16, 16\)"),
        (torch.zeros(3), "batch dimension"),
    ],
)
def test_inputs_that_cannot_be_used(inputs: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        dmbp.linearize(nets.FunctionalNet().eval(), inputs, target=0)


def test_nan_weights_are_named() -> None:
    model = nets.VGGLike().eval()
    nn.init.constant_(model.features[3].weight, torch.nan)
    with pytest.raises(ModelError, match=r"NaN or infinity, first in 'features\.3\.weight'"):
        dmbp.linearize(model, torch.randn(IMAGES), target=0)


class Returns(nn.Module):
    def __init__(self, what: object) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> object:
        return self.what(x)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (lambda x: x.relu(), r"output has shape \(2, 3, 16, 16\)"),
        (lambda x: x.mean((0, 2, 3)), r"output has shape \(3,\)"),
        (lambda x: "cat", "returns a str without a tensor of shape"),
        (lambda x: x @ torch.zeros(3, 3), "does not run on an input of shape"),
        (lambda x: x.mean((2, 3)) if x.sum() > 0 else x.sum((2, 3)), "branch on tensor values"),
    ],
)
def test_models_that_cannot_be_explained(what: object, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        dmbp.linearize(Returns(what).eval(), torch.randn(IMAGES), target=0)


def test_a_wrong_rule_is_caught_and_located(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exactness check is no decoration: a rule that is off by a little cannot pass."""
    wrong = Gate(lambda z, *_: ElementwiseLine((z > 0) * 1.001))
    monkeypatch.setitem(GATES, "aten.relu.default", wrong)
    monkeypatch.setitem(dmbp.linear.rules.table.RULES, "aten.relu.default", wrong)
    with pytest.raises(InexactCapture, match=r"differs from the model's by .*, first at 'relu'"):
        dmbp.linearize(nets.ReusedNet().eval(), torch.randn(IMAGES), target=0)


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (nn.functional.dropout, r"takes F\.dropout\(x, training=self\.training\)\.$"),
        (torch.randn_like, r"It draws at random, .* do so in training only\.$"),
    ],
)
def test_what_to_do_about_drawing(draw: Callable[[Tensor], Tensor], sentence: str) -> None:
    class Drawing(nets.FunctionalNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + draw(x))

    with pytest.raises(UnsupportedOperation, match=sentence):
        dmbp.linearize(Drawing().eval(), torch.randn(IMAGES), target=0)


def test_a_random_model_is_caught() -> None:
    class Random(nets.FunctionalNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.rand(5)

    with pytest.raises(InexactCapture, match="randomness"):
        dmbp.linearize(Random().eval(), torch.randn(IMAGES), target=0)


def test_a_model_changed_since_its_capture_is_captured_anew() -> None:
    model = nets.FunctionalNet().eval()
    linearizer = Linearizer(model)
    inputs = torch.randn(IMAGES)
    linearizer.linearize(inputs, target=0)
    nn.init.normal_(model.fc.weight)  # in place: the graph reads the model's own tensors
    assert torch.equal(linearizer.linearize(inputs, target=0).value(), model(inputs)[:, 0])
    model.fc = nn.Linear(8, 7).eval()  # another head
    assert torch.equal(linearizer.linearize(inputs, target=6).value(), model(inputs)[:, 6])


class Counts(nets.ResidualNet):
    """Its batch size is a Python number, which binds the exported graph to it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(int(x.shape[0]), 3, 16, 16))


def test_a_model_that_counts_its_images() -> None:
    model, inputs = Counts().eval(), torch.randn(5, 3, 16, 16)
    linearizer = Linearizer(model)
    for count in (1, 5, 2, 1):
        net = linearizer.linearize(inputs[:count], target=1)
        assert torch.equal(net.value(), model(inputs[:count])[:, 1])


def test_a_program_exported_for_another_batch_size() -> None:
    program = torch.export.export(nets.ResidualNet().eval(), (torch.randn(IMAGES),))
    with pytest.raises(ModelError, match=r"does not run on an input of shape \(3, 3, 16, 16\)"):
        dmbp.linearize(program, torch.randn(3, 3, 16, 16), target=1)
    d = dmbp.linearize(program, torch.randn(IMAGES), target=1)
    assert d.exactness <= 1e-4


def test_a_callers_program_is_not_changed() -> None:
    model, inputs = nets.ReusedNet().eval(), torch.randn(IMAGES)
    model.relu.inplace = True
    program = torch.export.export(model, (inputs,))
    before = str(program.graph)
    assert "relu_" in before
    dmbp.linearize(program, inputs, target=1)
    assert str(program.graph) == before


class Counter(nets.ResidualNet):
    """Updates a buffer of its own on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return super().forward(x)


class WithoutGradients(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class WithGradients(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(True):
            return super().forward(x)


class WritesIntoItsInput(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        x -= 0.3
        return super().forward(x.relu_())


@pytest.mark.parametrize("make", [Counter, WithoutGradients, WithGradients, WritesIntoItsInput])
def test_models_with_habits(make: type[nn.Module]) -> None:
    model, inputs = make().eval(), torch.randn(IMAGES)
    before = inputs.clone()
    net = dmbp.linearize(model, inputs, target=1)
    assert torch.equal(inputs, before)
    assert torch.equal(net.value(), model(inputs.clone())[:, 1])
    assert net.pullback().abs().max() > 0


@pytest.mark.parametrize(
    "mix", [lambda h: h - h.mean(0, keepdim=True), lambda h: h + h.flip(0), lambda h: h.roll(1, 0)]
)
@pytest.mark.parametrize("images", [1, 3])
def test_images_that_see_each_other_are_refused(mix: object, images: int) -> None:
    class Mixing(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(mix(x))

    with pytest.raises(CaptureError, match="other images of its batch"):
        dmbp.linearize(Mixing().eval(), torch.randn(images, 3, 16, 16), target=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        torch.compile,
        lambda model: torch.compile(nn.DataParallel(model)),
        lambda model: nn.DataParallel(torch.compile(model)),
    ],
)
def test_wrappers_are_taken_off(wrap: object) -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    wrapped = wrap(model)
    with pytest.warns(UserWarning, match="explained without its .* wrapper"):
        linearizer = Linearizer(wrapped)
    assert linearizer.model is model
    assert torch.equal(linearizer.linearize(inputs, target=1).value(), model(inputs)[:, 1])
    with pytest.warns(UserWarning, match="explained without its .* wrapper"):
        maps = dmbp.DMBP(wrapped, iterations=2).attribute(inputs, target=1)
    assert torch.equal(maps, dmbp.DMBP(model, iterations=2).attribute(inputs, target=1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
def test_a_model_compiled_in_place() -> None:
    model, inputs = nets.ReusedNet().eval(), torch.randn(IMAGES)
    expected = model(inputs)[:, 1]
    model.compile(backend="eager")
    torch.testing.assert_close(dmbp.linearize(model, inputs, target=1).value(), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
def test_a_compiled_part() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(IMAGES)
    expected = model(inputs)[:, 1]
    model.features = torch.compile(model.features, backend="eager")
    torch.testing.assert_close(dmbp.linearize(model, inputs, target=1).value(), expected)


def test_what_is_no_model_and_no_input() -> None:
    with pytest.raises(ModelError, match="an ExportedProgram, not <function"):
        dmbp.linearize(lambda x: x, torch.randn(IMAGES), target=1)
    with pytest.raises(ModelError, match="run the model once first"):
        dmbp.linearize(nn.Sequential(nn.LazyLinear(2)).eval(), torch.randn(2, 3), target=1)
    model = nets.ResidualNet().eval()
    for inputs in (None, "photo.jpg", torch.randn(IMAGES).numpy(), torch.randn(2, 3).to_sparse()):
        with pytest.raises(InputError, match="must be a dense tensor"):
            dmbp.linearize(model, inputs, target=1)


@pytest.mark.parametrize("more", [nn.Identity(), nn.Flatten()])
def test_a_final_softmax_is_pointed_out(more: nn.Module) -> None:
    model = nn.Sequential(nets.ResidualNet(), nn.Softmax(1), more).eval()
    with pytest.raises(CaptureError, match=r"softmax.*at '1'.*last layer, explain the model"):
        dmbp.linearize(model, torch.randn(IMAGES), target=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_with_what_to_do() -> None:
    model = nets.ResidualNet().eval()
    inputs = torch.randn(1, 3, 16, 16)
    for made in (torch.jit.trace(model, inputs), torch.jit.script(model)):
        with pytest.raises(CaptureError, match="explain the module that it was made from"):
            dmbp.linearize(made, inputs, target=1)


def test_an_exported_program_is_a_model() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    program = torch.export.export(model, (inputs,))
    net = dmbp.linearize(program, inputs, target=1)
    assert torch.equal(net.value(), model(inputs)[:, 1])


def test_a_program_for_one_image_takes_several() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    program = torch.export.export(model, (inputs[:1],))
    assert relative(dmbp.linearize(program, inputs, target=1).value(), model(inputs)[:, 1]) <= 1e-6
    for name in ("dmbp", "gradcam", "smoothgrad"):
        settings = {"iterations": 3} if name == "dmbp" else {}
        maps = [
            dmbp.methods()[name](net, **settings).attribute(inputs, target=1)
            for net in (program, model)
        ]
        assert relative(*maps) <= 1e-4


def test_a_wrapper_is_told_of_once_and_where_it_was_given() -> None:
    wrapped = nn.DataParallel(nets.FunctionalNet().eval())
    with pytest.warns(UserWarning, match="explained without its DataParallel wrapper") as told:
        dmbp.DMBP(wrapped)
    assert [warning.filename for warning in told] == [__file__]


def test_a_wrapper_that_passes_everything_on() -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Tensor) -> Tensor:
            return self.model(*args)

    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    linearizer = Linearizer(Wrapper(model).eval())
    for count in (3, 1):
        net = linearizer.linearize(inputs[:count], target=1)
        assert torch.equal(net.value(), model(inputs[:count])[:, 1])
    assert len(linearizer._captured) == 1


def test_a_random_model_with_one_number_an_image() -> None:
    class Weighed(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.mean((1, 2, 3)).relu()[:, None] + torch.rand(())

    with pytest.raises(CaptureError, match="use randomness"):
        dmbp.linearize(Weighed().eval(), torch.randn(IMAGES), target=1)


def test_infinite_values_are_named() -> None:
    class Hidden(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.masked_fill(x < 0.5, float("-inf")).relu())

    with pytest.raises(CaptureError, match="computes with infinite values"):
        dmbp.linearize(Hidden().eval(), torch.randn(IMAGES), target=1)


class OneAtATime(nn.Module):
    """Takes a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x).squeeze(0)).mean((1, 2)))[None]


def test_a_model_that_takes_one_image_at_a_time() -> None:
    model = OneAtATime().eval()
    image = torch.randn(1, 3, 10, 10)
    assert torch.equal(dmbp.linearize(model, image, target=1).value(), model(image)[:, 1])
    assert dmbp.DMBP(model, iterations=3).attribute(image, target=1).shape == image.shape


class Stem(nn.Module):
    """A batch norm whose output is turned into tokens, as in LeViT."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.mix, self.fc = nn.Linear(8, 8), nn.Linear(8, 5)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        return self.fc(torch.relu(self.mix(tokens)).square().mean(1))


class BrokenUp(Stem):
    """With an operation that has a rule only once it is broken up, and batch norm with it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.addcmul(x, x, torch.ones_like(x)))


@pytest.mark.parametrize("make", [Stem, BrokenUp])
def test_batch_norm_of_a_single_image(make: type[nn.Module]) -> None:
    """PyTorch's own gradient is wrong there: against the difference of two outputs."""
    model, image = make().double().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    step = 1e-6 * torch.randn_like(image)
    expected = (model(image + step) - model(image - step))[0, 1] / 2
    slope = dmbp.linearize(model, image, target=1).pullback()
    torch.testing.assert_close((slope * step).sum(), expected, rtol=1e-4, atol=0)
    maps = dmbp.methods()["gradient"](model).attribute(image, target=1)
    torch.testing.assert_close((maps / image * step).sum(), expected, rtol=1e-4, atol=0)


def test_a_program_exported_in_training_mode_is_refused_with_what_to_do() -> None:
    inputs = torch.randn(4, 3, 16, 16)
    images = ({0: torch.export.Dim("images", min=2)},)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    program = torch.export.export(model.train(), (inputs,), dynamic_shapes=images)
    with pytest.raises(UnsupportedOperation, match=r"evaluation mode with model\.eval\(\)"):
        dmbp.linearize(program, inputs, target=0)
