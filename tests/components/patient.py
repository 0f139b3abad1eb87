"""Eyes whose steps are as large as a test means them to be."""

from __future__ import annotations

from components.encoder.vision import VisionEncoder


class Patient(VisionEncoder):
    """Waits for all that are being prepared, however slow the machine is."""

    window = 30.0
