"""CUDA graphs on the CPU, for tests: a capture notes each torch operation, a replay repeats them.

As on a GPU, a capture changes no tensor and refuses to read one on the host; a replay reads and
writes the tensors of the capture and runs no Python code of the step. What only a GPU has, such as
streams and private memory, is not imitated: tests/gpu/test_graph_step.py is for that.
"""

from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mambanorm.kernels import backends, graph_step


class Capture(TorchDispatchMode):
    """Runs and notes operations, and remembers what `undo` needs."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.before = {}  # id of a tensor that an operation changes → the tensor and a copy of it
        self.outside, self.made = set(), set()  # addresses of memory

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.outside |= {address(tensor) for tensor in tensors((args, kwargs))} - self.made
        given = (
            dict(zip([argument.name for argument in operation._schema.arguments], args)) | kwargs
        )
        for argument in operation._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tensors(given.get(argument.name)):
                    self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = operation(*args, **kwargs)
        self.made |= {address(tensor) for tensor in tensors(result)} - self.outside
        self.operations.append((operation, args, kwargs, result))
        return result

    @torch.no_grad()
    def undo(self):
        """Give tensors from outside their values before the capture, and new tensors NaN."""
        for tensor, value in self.before.values():
            tensor.copy_(value)
        for *_, result in self.operations:
            for tensor in tensors(result):
                if tensor.is_floating_point() and address(tensor) in self.made:
                    tensor.fill_(torch.nan)


def tensors(values):
    """Return the tensors in nested lists, tuples and dicts."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def address(tensor):
    return tensor.untyped_storage().data_ptr()


class Graph:
    """Stands in for torch.cuda.CUDAGraph."""

    @torch.no_grad()
    def replay(self):
        for operation, args, kwargs, result in self.operations:
            for old, new in zip(tensors(result), tensors(operation(*args, **kwargs))):
                if address(old) != address(new):
                    old.copy_(new)


@contextmanager
def capturing(graph, stream):
    """Stand in for torch.cuda.graph."""
    capture = Capture()
    try:
        with capture:
            yield
    except Exception:
        raise RuntimeError("operation failed due to a previous error during capture") from None
    finally:
        capture.undo()
    graph.operations = capture.operations


class Stream:
    """Stands in for torch.cuda.Stream."""

    def __init__(self, device=None):
        pass

    def wait_stream(self, stream):
        pass


def use_fake_graphs(monkeypatch):
    """Let `graph_step` replay steps on the CPU, in plain torch. Return the list of sync modes."""
    modes = [0]
    for name, stand_in in {
        "CUDAGraph": Graph,
        "graph": capturing,
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
        "get_sync_debug_mode": lambda: modes[-1],
        "set_sync_debug_mode": modes.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(graph_step, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(backends, "HAS_NUMBA", False)  # operations of Numba cannot be noted
    graph_step.capture_stream.cache_clear()
    return modes
