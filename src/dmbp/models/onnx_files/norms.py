"""Normalisations, and softmax."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dmbp.errors import ModelError
from dmbp.models.onnx_files.call import Call, Row


def _batch_norm(call: Call) -> Tensor:
    if call.attribute("training_mode", 0):
        raise ModelError("the ONNX file was exported in training mode: export model.eval()")
    activation, weight, bias, mean, variance = (call.tensor(k) for k in range(5))
    epsilon = call.attribute("epsilon", 1e-5)
    return F.batch_norm(activation, mean, variance, weight, bias, False, 0.0, epsilon)


def _layer_norm(call: Call) -> Tensor:
    activation = call.tensor(0)
    shape = list(activation.shape)[call.attribute("axis", -1) :]
    return F.layer_norm(
        activation, shape, call.tensor(1), call.optional(2), call.attribute("epsilon", 1e-5)
    )


def _rms_norm(call: Call) -> Tensor:
    activation = call.tensor(0)
    shape = list(activation.shape)[call.attribute("axis", -1) :]
    return F.rms_norm(activation, shape, call.tensor(1), call.attribute("epsilon", 1e-5))


def _group_norm(call: Call) -> Tensor:
    activation, weight, bias = (call.tensor(k) for k in range(3))
    groups, channels = call.attribute("num_groups"), activation.shape[1]
    if call.version < 21:  # scale and bias of every group, of every channel since
        weight, bias = (one.repeat_interleave(channels // groups) for one in (weight, bias))
    return F.group_norm(activation, groups, weight, bias, call.attribute("epsilon", 1e-5))


def _instance_norm(call: Call) -> Tensor:
    activation, weight, bias = (call.tensor(k) for k in range(3))
    epsilon = call.attribute("epsilon", 1e-5)
    return F.instance_norm(activation, weight=weight, bias=bias, eps=epsilon)


def _local_response_norm(call: Call) -> Tensor:
    size, alpha = call.attribute("size"), call.attribute("alpha", 1e-4)
    beta, bias = call.attribute("beta", 0.75), call.attribute("bias", 1.0)
    if size % 2:
        return F.local_response_norm(call.tensor(0), size, alpha, beta, bias)
    # A window of even size reaches further back in torch, further on in ONNX.
    turned = call.tensor(0).flip(1)
    return F.local_response_norm(turned, size, alpha, beta, bias).flip(1)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> Row:
    def row(call: Call) -> Tensor:
        activation = call.tensor(0)
        if call.version >= 13:
            return function(activation, call.attribute("axis", -1))
        axis = call.attribute("axis", 1)  # older sets flatten all from the axis on
        return function(activation.flatten(axis), -1).reshape(activation.shape)

    return row


NORMS: Mapping[str, Row] = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _local_response_norm,
    "LpNormalization": lambda call: F.normalize(
        call.tensor(0), call.attribute("p", 2), call.attribute("axis", -1)
    ),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
}
