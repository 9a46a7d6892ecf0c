import contextlib
import contextvars

_processed = contextvars.ContextVar("weights_pre_processed", default=False)


@contextlib.contextmanager
def weights_already_processed():
    token = _processed.set(True)
    try:
        yield
    finally:
        _processed.reset(token)


def is_weights_pre_processed():
    return _processed.get()
