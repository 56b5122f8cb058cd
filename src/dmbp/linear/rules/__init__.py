"""Freezing rules: the linear function that stands for each ATen operation in the network at x.

`table.RULES` maps the name of every supported operation to its rule. Each file defines the rule
classes and the part of the table for one kind of operation; to support an operation, add a row:

| the operation                                                | file          | part of the table |
| ------------------------------------------------------------ | ------------- | ----------------- |
| is affine in the activations (a convolution, a reshape)      | `affine.py`   | `AFFINE`          |
| is an elementwise, piecewise linear activation (ReLU)        | `gates.py`    | `GATES`           |
| is a smooth function, elementwise or a reduction (GELU, var) | `smooth.py`   | `SMOOTH`          |
| multiplies or divides two activations; attention             | `products.py` | `PRODUCTS`        |
| divides by a statistic of the activation (layer norm)        | `norms.py`    | `NORMS`           |
| picks some of the activations (max-pooling, sort)            | `choices.py`  | `CHOICES`         |
| has a result that is constant around x (a comparison)        | `choices.py`  | `DECISIONS`       |

`bilinear.py` has other rules for products and softmax, which AttnLRP takes in place of these.
`base.py` defines `Rule`, the interface of all rules. "Add an operation" in CONTRIBUTING.md has the
recipe and the test that a new row needs. `refusals.py` says why operations without a rule, or some
of their calls, are refused.
"""
