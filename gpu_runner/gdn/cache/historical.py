"""The masks of decode as they once shipped: mechanisms that a fault switches back on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from gpu_runner.gdn.cache.tracking import DecodeMasks
from gpu_runner.gdn.faults import Fault, is_on


def with_historical_faults(masks: DecodeMasks) -> DecodeMasks:
    """`masks` as the first version of sgl-project/sglang#47213 built them, when its faults are on.

    `mask_is_list`: the local became a list, so that pinning it raises AttributeError in every mode.
    `next_mask_when_no_overlap`: the nesting of the conditions made a list where overlap is off.
    """
    if is_on(Fault.MASK_IS_LIST):
        masks = replace(masks, mask=cast("Any", masks.now))
    if is_on(Fault.NEXT_MASK_WHEN_NO_OVERLAP) and masks.upcoming is None:
        masks = replace(masks, upcoming=[False] * len(masks.now))
    return masks
