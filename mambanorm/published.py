"""Published variants of Mamba and their norms: the paper's survey (§2.3, §3.2), and later models.

PUBLISHED maps the name of each variant to its arm as text; arms.py parses these texts for PRESETS.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Published(NamedTuple):
    """A published variant.

    arm: a text such as "LN>SSM>None" in PUBLISHED, a parsed Arm in `arms.PRESETS`. domain:
    "sequence" or "vision". section: the sections of the paper that name the variant; "" means none.
    options: the variant's norm options by site, as in the argument `norm_options` of models.
    """

    arm: Any
    domain: str
    section: str
    note: str = ""
    options: Mapping[str, Mapping[str, object]] = MappingProxyType({})


def _rows(arm: str, domain: str, section: str, *names: str) -> dict[str, Published]:
    return {name: Published(arm, domain, section) for name in names}


PUBLISHED: dict[str, Published] = {
    # the two variants that the paper calls "original" (§4.5)
    "Mamba": Published("RMSN>SSM>None", "sequence", "4.5", "the paper's original for sequences"),
    "VMamba": Published("LN>SSM>LN", "vision", "4.5", "the paper's original for vision"),
    # §2.3 of the paper: a norm before the SSM
    **_rows("LN>SSM>None", "sequence", "2.3", "FMamba", "MLSA4Rec", "Zamba"),
    **_rows("RMSN>SSM>None", "sequence", "2.3, 3.2", "DiMSUM", "Quamba", "bi-CrossMamba"),
    **_rows("RMSN>SSM>None", "sequence", "2.3, 3.2", "Mamba-PTQ", "CMAMBA"),
    "SSM-fewshot": Published(
        "BN>SSM>None", "sequence", "2.3", "Liang et al. 2024, named 'self-supervised'"
    ),
    "MC-SEMamba": Published("IN>SSM>None", "sequence", "2.3"),
    **_rows("LN>SSM>None", "vision", "2.3", "RetinexMamba", "CU-Mamba", "RSMamba"),
    "FST-Mamba": Published("RMSN>SSM>None", "vision", "2.3, 3.2"),
    # §2.3 of the paper: a norm after the SSM
    "DIFFIMP": Published("None>SSM>RMSN", "sequence", "2.3, 3.2"),
    "Bi-Mamba-IN": Published(
        "None>SSM>IN", "sequence", "2.3", "Tang et al. 2024 according to §2.3 (I4f)"
    ),
    "Mamba2": Published("None>SSM>GN", "sequence", "2.3", "cited there as Bai et al. 2024a"),
    "IRSRMamba": Published("None>SSM>LN", "vision", "2.3"),
    "MambaHSI": Published("None>SSM>GN", "vision", "2.3"),
    # §3.2 of the paper: the same norm before and after the SSM
    "MambaDC": Published("LN>SSM>LN", "sequence", "3.2"),
    "Bi-Mamba": Published(
        "LN>SSM>LN", "sequence", "3.2", "Zhou et al. 2024 according to §3.2; §2.3 says IN (I4f)"
    ),
    "TiM4Rec": Published("LN>SSM>LN", "sequence", "3.2"),
    **_rows("LN>SSM>LN", "vision", "3.2", "ChangeMamba", "MiM-ISTD", "Fusion-Mamba"),
    "BMAMBA2": Published("GN>SSM>GN", "sequence", "3.2"),
    # the paper's proposals (§4.5)
    "proposed-sequence": Published(
        "NormVary>SSM>GN", "sequence", "4.5", "the paper's proposal for sequences"
    ),
    "proposed-vision": Published(
        "NormVary>SSM>LN", "vision", "4.5", "the paper's proposal for vision"
    ),
    # later models, which the paper does not name
    "Mamba-2-norms": Published(
        "RMSN>SSM>None+gated:RMSN", "sequence", "", "Dao & Gu 2024: a norm after the gate"
    ),
    "Jamba": Published(
        "RMSN>SSM>None+B:RMSN+C:RMSN+delta:RMSN",
        "sequence",
        "",
        "Lieber et al. 2024: B, C and Δ, against loss spikes",
    ),
    "Falcon-Mamba": Published(
        "RMSN>SSM>None+B:RMSN+C:RMSN+delta:RMSN",
        "sequence",
        "",
        "Zuo et al. 2024: as Jamba, without weights",
        {site: {"affine": False} for site in ("B", "C", "delta")},
    ),
    "Mamba-3-norms": Published(
        "RMSN>SSM>None+B:RMSN+C:RMSN",
        "sequence",
        "",
        "Lahoti et al. 2026: B and C, as attention's QK-norm",
    ),
    "Peri-LN": Published(
        "LN>SSM>None+branch:LN", "sequence", "", "Kim et al. 2025: before and after"
    ),
}
