"""A prediction's inputs turn back into the picture that the model saw."""

from dataclasses import replace

import numpy
import pytest
from PIL import Image

from dmbp.models import Preprocessing
from dmbp.workflows.prediction import predict
from tests.cli.networks import good

BGR = Preprocessing(
    crop=(20, 30), fit="squeeze", scale=255.0, channels="bgr", mean=(104, 117, 123), std=(1, 2, 3)
)


@pytest.mark.parametrize("seen", [BGR, Preprocessing(32, 32)])
def test_inputs_turn_back_into_the_photo(seen: Preprocessing) -> None:
    photo = Image.new("RGB", (60, 40), (200, 100, 50))
    photo.paste(Image.new("RGB", (30, 40), (10, 250, 90)), (0, 0))
    prediction = predict(photo, "photo", replace(good(), preprocessing=seen), [])
    assert prediction.inputs.shape[2:] == seen.size
    picture = prediction.denormalise(prediction.inputs[0])
    assert picture.shape == (*seen.size, 3)
    assert numpy.abs(picture - prediction.photo).max() < 1e-5
