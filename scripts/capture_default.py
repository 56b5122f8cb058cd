"""Store the captured graph of the default model, so that nobody's first run has to export it.

    python scripts/capture_default.py

Run it again whenever the network in `src/dmbp/models/voc160.py` changes; a graph that does not fit
is not used, and the first explanation takes seconds longer.
"""

import torch

from dmbp.linear.capture.export import capture
from dmbp.linear.capture.graph_file import pack
from dmbp.models.voc160 import INPUT_SIZE, SmallResNet


def main() -> None:
    model, images = SmallResNet().eval(), torch.zeros(2, 3, INPUT_SIZE, INPUT_SIZE)
    content = pack(capture(model, images), model, images)
    SmallResNet.captured_graph.write_bytes(content)
    print(f"{SmallResNet.captured_graph}: {len(content)} bytes")


if __name__ == "__main__":
    main()
