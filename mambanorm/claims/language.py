"""The hypotheses about language models: H1l, H3l and H8l, the paper's claims with causal norms alone.

The paper trains no language model, and most of its norms see later positions. This is our extension: what its claims
say where the next character is predicted. Of its five norms LN and RMSN are causal, and so is GN within a token
(GN-token); BN and IN have no such form. NormVary-token mixes these three (norms/normvary.py).

Every comparison is in bits a character, signed so that above 0 the paper is right.
"""

from __future__ import annotations

from dataclasses import replace

from mambanorm.claims.claim import SMALLEST_BITS, Claim
from mambanorm.claims.comparisons import Comparison, after_against_before, causal_steps, types_against_none

CAUSAL_NORMS = ("LN", "RMSN", "GN-token")
"""The paper's norms that a language model can have, GN in its form within a token."""

OURS = "the paper trains no language model: our extension to its claim about sequences"


def language_claims(h1: Claim, h3: Claim, h8: Claim) -> tuple[Claim, ...]:
    """H1l, H3l and H8l, from the claims about sequences that they put to language models."""
    return (
        _causal(
            h1,
            "H1l",
            types_against_none(CAUSAL_NORMS),
            words="In a language model there is a causal norm that, before and after the SSM, beats no norm at all.",
            quantity="test loss in bits a character of None→None minus N→N, for each of three causal norms",
            direction="at least one N→N better than None→None; for how many stands beside",
        ),
        _causal(
            h3,
            "H3l",
            after_against_before(CAUSAL_NORMS),
            words="In a language model a causal norm after the SSM beats the same norm before it, on average over the "
            "norms.",
            quantity="test loss in bits a character of N→None minus None→N, mean over three causal norms; beside it "
            "each norm",
            direction="the mean above zero by the threshold; for how many norms stands beside",
        ),
        _causal(
            h8,
            "H8l",
            causal_steps(),
            words="In a language model NormVary→GN in causal form, NormVary-token→GN-token, beats the original "
            "RMSN→None.",
            quantity="test loss in bits a character, the original's minus the proposal's; beside it what tells "
            "NormVary-token's share from GN-token's",
            direction="proposal better than original",
            note="of NormVary's five members the three that one token has: GN-token, LN and RMSN",
        ),
    )


def _causal(claim: Claim, claim_id: str, comparisons: tuple[Comparison, ...], note: str = "", **said: str) -> Claim:
    in_bits = tuple(replace(comparison, column="bits") for comparison in comparisons)
    note = f"{OURS}; {note}" if note else OURS
    own = dict(comparisons=in_bits, threshold=SMALLEST_BITS, paper="no number printed", paper_task="", note=note)
    return replace(claim, id=claim_id, **own, **said)
