"""A U-Net for segmentation: contracting and expanding paths with skips [Ronneberger et al. 2015].

With batch normalisation and padded convolutions, as it is commonly used today.
"""

import torch
from torch import nn

WIDTH = 32
LEVELS = 4


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Returns two 3x3 convolutions {b, inputs, y, x} -> {b, outputs, y, x}."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Maps pixels {b, inputs, y, x} to class scores {b, classes, y, x}; y and x divide by 16."""

    def __init__(self, inputs: int = 3, classes: int = 2) -> None:
        super().__init__()
        widths = [WIDTH << level for level in range(LEVELS + 1)]
        self.down = nn.ModuleList(
            _double_convolution(a, b) for a, b in zip([inputs, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(width * 2, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(
            _double_convolution(width * 2, width) for width in reversed(widths[:-1])
        )
        self.scores = nn.Conv2d(WIDTH, classes, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the class scores of every pixel."""
        skips: list[torch.Tensor] = []
        value: torch.Tensor = self.down[0](pixels)
        for stage in self.down[1:]:
            skips.append(value)
            value = stage(self.pool(value))
        for grow, stage, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            value = stage(torch.cat([skip, grow(value)], dim=1))
        scores: torch.Tensor = self.scores(value)
        return scores
