"""The page on a Ray cluster: replicas of the app, each with a model of its own.

    pip install 'dmbp[ray]'
    serve run dmbp.web.ray_serve:app model=resnet50 device=cuda replicas=4 gpus=1 hosts=box.example

Ray sends each request to any replica. One that does not know a photo says so, and the page sends it
again, so that replicas share nothing. Requests of one shape that wait for one replica are computed
together.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from dmbp.errors import InputError, require_known
from dmbp.web.app import PageOptions, make_app
from dmbp.web.guard import LOOPBACK
from dmbp.workflows.prediction import ModelSpec

ARGUMENTS = ("model", "device", "preset", "hosts", "token", "replicas", "gpus", "waiting")

AT_ONCE = 64
"""How many requests Ray gives to a replica at once; its own queue says when there are too many."""


def app(arguments: Mapping[str, str]) -> Any:
    """Return the application that `serve run` deploys.

    Args:
        arguments: What stands after the name of the app: `model`, `device` and `preset` as for
            `dmbp serve`, `hosts` (names separated by commas) and `token`, `replicas`, `gpus` for
            each replica, and `waiting`, the most requests that wait for each.

    Raises:
        InputError: If an argument is unknown or is not a number.
    """
    for name in arguments:
        require_known("argument", name, ARGUMENTS)
    names = [name.strip() for name in arguments.get("hosts", "").split(",")]
    options = PageOptions(
        ModelSpec(arguments.get("model"), device=arguments.get("device", "cpu")),
        {"preset": arguments.get("preset", "tested")},
        (*LOOPBACK, *(name for name in names if name)),
        arguments.get("token"),
        waiting=int(_number(arguments, "waiting", 32)),
    )
    serve: Any = import_module("ray.serve")
    # The app is made in the replica: its queues belong to the event loop there.
    replica = serve.ingress(lambda: make_app(options))
    deployed = serve.deployment(
        name="dmbp",
        num_replicas=int(_number(arguments, "replicas", 1)),
        max_ongoing_requests=AT_ONCE,
        ray_actor_options={"num_gpus": _number(arguments, "gpus", 0)},
    )
    return deployed(replica()).bind()


def _number(arguments: Mapping[str, str], name: str, default: float) -> float:
    text = str(arguments.get(name, default))
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{name} must be a number, not {text!r}") from error
