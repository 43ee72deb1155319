"""ListOps' notation: what an expression means, how it is written, and which ids its tokens have.

    ( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )  ->  SM(8, 9, MAX(2, 5, MIN(3, 1))) = 2

Sources: text as in LRA's generator `lra_benchmarks/data/listops.py` (Tay et al. 2021, arXiv:2011.04006); reader and
vocabulary as in state-spaces/s4 `src/dataloaders/lra.py`.

Map
    evaluate                    text -> value (an error says where a text is malformed)
    serialise, parenthesise     tree -> text;  flat tokens -> text
    tokenise, encode, decode    text -> s4 tokens -> ids and back

Glossary: source = the text with LRA's parentheses; token = an operator, a digit or the closing bracket (parentheses are
no tokens); tree = a digit or (operator, [tree, …]); ids = one byte a token, `<eos>` last.
"""

from __future__ import annotations

from collections.abc import Callable

from mambanorm.basics.errors import unknown

# LRA's MED truncates the mean of the middle two; for digits that is a floor division.
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda args: (sorted(args)[(len(args) - 1) // 2] + sorted(args)[len(args) // 2]) // 2,
    "[SM": lambda args: sum(args) % 10,
}
DIGITS = tuple("0123456789")
VOCABULARY = ("<pad>", "<unk>", "<eos>", *DIGITS, *OPERATORS, "X")
IDS = {token: i for i, token in enumerate(VOCABULARY)}
UNK, EOS, CLOSE = IDS["<unk>"], IDS["<eos>"], IDS["X"]
WRITTEN = (*OPERATORS, "]", *DIGITS, "(", ")")  # what a source may hold

Tree = int | tuple[str, list]


# ---------------------------------------------------------------------------------------------- text -> value


def evaluate(expression: str) -> int:
    """The value 0…9 of an expression in LRA's notation, tokens separated by white space, or of a single digit.

    Parentheses may be left out. Where there are any, all must stand as LRA writes them (see `serialise`).
    ValueError for malformed text, saying which token (counted from 1, parentheses included) is wrong and why.
    """
    try:
        written = expression.split()
    except AttributeError as error:
        kind = type(expression).__name__
        raise ValueError(f"expression {expression!r} is a {kind}: needed is text such as '[MAX 2 9 ]'") from error
    tokens = [(place, token) for place, token in enumerate(written, 1) if token not in ("(", ")")]
    value, counts = _reduce(tokens)
    if len(tokens) < len(written):
        _check_parentheses(written, _binarise([token for _, token in tokens], counts))
    return value


def _reduce(tokens: list[tuple[int, str]]) -> tuple[int, list[int]]:
    """Value of a flat expression and each operator's number of arguments, in the order of the operators.

    An explicit stack instead of recursion: text may be nested deeper than Python's recursion limit.
    """
    stack, counts, value = [], [], None
    for place, token in tokens:
        if value is not None:
            raise ValueError(f"token {place} {token!r}: the expression is complete before it, nothing may follow")
        if token in OPERATORS:
            stack.append((place, token, [], len(counts)))
            counts.append(0)
            continue
        value = _close(stack, counts, place) if token == "]" else _digit(place, token)
        if stack:
            stack[-1][2].append(value)
            value = None
    if stack:
        opened, name, *_ = stack[-1]
        raise ValueError(f"text ends after token {tokens[-1][0]}: {name!r} at token {opened} lacks its ']'")
    if value is None:
        raise ValueError("text is empty at token 1: needed is a digit or an operator, such as '[MAX 2 9 ]'")
    return value, counts


def _close(stack: list, counts: list[int], place: int) -> int:
    """Value of the innermost open operator, which leaves the stack."""
    if not stack:
        raise ValueError(f"token {place} ']': no operator is open that it could close")
    opened, name, args, index = stack.pop()
    if not args:
        raise ValueError(f"token {place} ']': {name!r} at token {opened} has no arguments, it needs at least one")
    counts[index] = len(args)
    return OPERATORS[name](args)


def _digit(place: int, token: str) -> int:
    """0…9, or the ValueError that says what the token is instead."""
    if token in DIGITS:
        return int(token)
    if token.lstrip("+-").isdigit():
        raise ValueError(f"token {place} {token!r}: a number is a single digit, 0 to 9")
    raise ValueError(f"token {place}: {unknown('token', token, WRITTEN)}")


def _check_parentheses(written: list[str], expected: list[str]) -> None:
    """ValueError at the first token that differs from LRA's own form of the same expression."""
    for place, (found, needed) in enumerate(zip(written, expected, strict=False), 1):
        if found != needed:
            raise ValueError(f"token {place} {found!r}: LRA's form has {needed!r} here (or leave all parentheses out)")
    if len(written) < len(expected):
        raise ValueError(f"text ends after token {len(written)}: a closing ')' is missing")
    if len(written) > len(expected):
        place, token = len(expected) + 1, written[len(expected)]
        raise ValueError(f"token {place} {token!r}: the expression is complete before it, nothing may follow")


# ---------------------------------------------------------------------------------------------- trees and tokens


def serialise(tree: Tree) -> str:
    """LRA's left-binarised text of a tree: a digit, or `(operator, [tree, …])`.

    The text starts with the operator. Each argument wraps the text so far as `( … argument )`, the bracket wraps it as
    `( … ] )`. So an operator with k arguments has k + 1 parentheses before it. ValueError for what is no tree.
    """
    tokens, todo = [], [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, tuple):
            name, args = _operator(node)
            tokens.append(name)
            todo += ["]", *reversed(args)]
        else:
            tokens.append(str(node))
    return parenthesise(tokens)


def parenthesise(tokens: list[str]) -> str:
    """LRA's left-binarised text of the flat tokens of an expression. ValueError for what is none."""
    _, counts = _reduce(list(enumerate(tokens, 1)))
    return " ".join(_binarise(tokens, counts))


def _operator(node: tuple) -> tuple[str, list]:
    """The node taken apart, once it is known to be `(operator, [tree, …])`."""
    if len(node) != 2 or not isinstance(node[1], list | tuple):
        raise ValueError(f"node {node!r}: needed is a digit or (operator, [arguments])")
    if node[0] not in OPERATORS:
        raise unknown("operator", node[0], OPERATORS)
    return node


def _binarise(tokens: list[str], counts: list[int]) -> list[str]:
    """Flat tokens with LRA's parentheses; `counts` are the operators' numbers of arguments, in order."""
    written, depth, operators = [], 0, iter(counts)
    for token in tokens:
        if token in OPERATORS:
            written += ["("] * (next(operators) + 1) + [token]
            depth += 1
            continue
        written.append(token)
        if token == "]":
            written.append(")")
            depth -= 1
        if depth:  # whatever ended here is an argument of the operator around it
            written.append(")")
    return written


def tokenise(source: str) -> list[str]:
    """The s4 reader's tokens: parentheses dropped, `]` written as `X`. Nothing is checked: see `evaluate`."""
    return source.replace("]", "X").replace("(", "").replace(")", "").split()


def encode(tokens: list[str], l_max: int = 2_048) -> list[int]:
    """Ids in the vocabulary of 18 (`<unk>` for other tokens), truncated to l_max − 1, `<eos>` appended, as in s4."""
    if l_max < 1:
        raise ValueError(f"l_max={l_max}: needed is room for <eos>, so 1 or more")
    return [IDS.get(token, UNK) for token in tokens[: l_max - 1]] + [EOS]


def decode(ids) -> str:
    """The tokens of a row of ids as text, without `<pad>` and `<eos>`; `evaluate` reads it."""
    return " ".join("]" if i == CLOSE else VOCABULARY[i] for i in map(int, ids) if i not in (0, EOS))
