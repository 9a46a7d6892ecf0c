"""A client of examples/serve/serve.py, for its tests."""

import contextlib
import http.client
import json
import time

import common

PROMPT = [1, 7, 30]
LONG = 100_000  # tokens, more than any test waits for


class Stream:
    """A request, whose tokens are read as they come.

    times       when each token came, by time.monotonic
    last        the event that ended it
    """

    def __init__(self, port, prompt=PROMPT, n=20, adapter=None, **fields):
        self.conn = http.client.HTTPConnection("127.0.0.1", port, timeout=common.PATIENCE)
        body = {"prompt": prompt, "max_tokens": n, **fields} | ({"adapter": adapter} if adapter else {})
        self.conn.request("POST", "/generate", json.dumps(body))
        self.answer = self.conn.getresponse()
        self.status, self.tokens, self.text, self.last = self.answer.status, [], "", None
        self.times = []

    def event(self):
        """Read an event. Return its kind and its data."""
        lines = []
        while (line := self._line()) != "\n":
            lines.append(line.rstrip("\n").split(": ", 1))
        fields = dict(lines)
        return fields.get("event", ""), json.loads(fields["data"])

    def _line(self):
        try:
            if line := self.answer.readline().decode():
                return line
        except http.client.HTTPException as e:
            raise ConnectionError(f"the stream broke off: {e}") from e
        raise ConnectionError("the stream broke off")

    def read(self, n=LONG):
        """Read n tokens more, or to the end."""
        while n and not self.last:
            kind, data = self.event()
            if kind:
                self.last = {"event": kind, **data}
                self.close()
            else:
                self.times.append(time.monotonic())
                self.tokens.append(data["token"])
                self.text += data.get("text", "")
                n -= 1
        return self

    def close(self):
        self.conn.close()
        self.answer.close()


def call(port, method, path, body=None, headers={}):
    """Return status, headers and text."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=common.PATIENCE)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read the body to refuse it
            conn.request(method, path, body, headers)
        answer = conn.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        conn.close()
