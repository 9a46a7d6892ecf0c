"""Files that put takes, and files that save writes."""

import os
import resource
import signal
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import common  # noqa: F401  the package's path
import gpufd
import odd_files
from gpufd.keeper import output as _output
from gpufd.keeper import put as _put
from gpufd.keeper import safetensors as _safetensors
from gpufd.keeper import tables as _tables
from gpufd.keeper import version as _version


class Bytes:
    """Memory that is a bytearray."""

    def __init__(self, size):
        self.bytes = bytearray(size)

    def write(self, at, data):
        self.bytes[at : at + len(data)] = data


def loaded(paths):
    """The table of a part of files, and its bytes."""
    source = _put._files(paths)
    memory = Bytes(source.table.size)
    source.write(memory)
    return source.table, bytes(memory.bytes)


class Files(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="gpufd-")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def file(self, name, content):
        path = os.path.join(self.dir, name)
        Path(path).write_bytes(content)
        return path

    def test_odd_files(self):
        """What put takes as tensors, as bytes or not at all; Go's test has the same cases."""
        for c in odd_files.make(os.path.join(self.dir, "odd")):
            with self.subTest(c["name"], why=c["why"]):
                if c["want"] == "refuse":
                    with self.assertRaises((gpufd.FormatError, OSError)) as raised:
                        _put._files([c["path"]])
                    self.assertIn(c["says"], str(raised.exception))
                    self.assertIn(c["path"].rstrip("/"), str(raised.exception))
                    self.assertNotIn("\n", str(raised.exception))
                    self.assertLess(len(str(raised.exception)), 1000)
                    continue
                table, content = loaded([c["path"]])
                self.assertEqual(table.format, "bytes" if c["want"] == "bytes" else "safetensors")
                if c["want"] == "accept":
                    self.assertEqual({t.name: content[t.offset : t.offset + t.bytes].hex() for t in table.tensors}, c["tensors"])
                    _tables.parse_table(_safetensors.json.loads(table.encode()), table.size)

    def test_files_of_two_kinds(self):
        model = self.file("model.safetensors", odd_files.one("a"))
        config, other = self.file("config.json", b"{}"), self.file("tokenizer.json", b"{}")
        for paths in ([config, model, other], [model, config], [self.dir, config]):
            with self.assertRaisesRegex(gpufd.FormatError, f"{config} is of another kind: give files of tensors alone, the directory"):
                _put._files(paths)
        self.assertEqual(loaded([config, other])[1], b"{}{}")
        with self.assertRaisesRegex(gpufd.FormatError, f"is there twice, in {model} too"):
            _put._files([model, model])

    def test_a_file_changes(self):
        for name, content in (("a.bin", bytes(5000)), ("a.safetensors", odd_files.one("a", 5000))):
            path = self.file(name, content)
            source = _put._files([path])
            os.replace(self.file("new", content), path)
            with self.assertRaisesRegex(gpufd.FormatError, f"{path} changed while it was read"):
                source.write(Bytes(source.table.size))
            for change in (lambda p: os.truncate(p, 1000), lambda p: Path(p).write_bytes(content + b"x"), lambda p: os.utime(p, (1e9, 1e9))):
                path = self.file(name, content)
                source = _put._files([path])
                memory = mock.Mock()
                memory.write.side_effect = lambda at, piece: change(path)  # while it is read
                with self.assertRaisesRegex(gpufd.FormatError, f"{path} changed while it was read"):
                    source.write(memory)

    def test_names_that_are_no_text(self):
        """A file's name is bytes; a table is text, as the commands write it."""
        path = self.file(os.fsdecode(b"\xff.bin"), b"x")
        source = _put._files([path])
        self.assertIn('"\ufffd.bin"', source.table.encode().decode())
        self.assertRaisesRegex(gpufd.FormatError, "no UTF-8", _tables.Table(metadata={"a": "\ud800"}, tensors=[_tables.Tensor("b", "U8", (), 0, 1)]).encode)

    def test_pieces(self):
        """Files longer than a piece are read ahead."""
        content = bytes(range(256)) * 40
        path = self.file("a", content)
        for piece in (1000, 5000, 10239, 10240, 10241):
            with mock.patch.object(_put, "PIECE", piece):
                self.assertEqual(loaded([path])[1], content)

    def test_a_table_that_is_too_large(self):
        """It is refused before a keeper is asked."""
        path = self.file("a.safetensors", odd_files.raw(odd_files.js({"__metadata__": {"k": "v" * 1000}, "a": odd_files.t("U8", [1], 0, 1)}), b"x"))
        with mock.patch.object(_tables, "TABLE_MOST", 500), self.assertRaisesRegex(gpufd.FormatError, "the table has [0-9]+ bytes; 500 are allowed"):
            gpufd.put("a", path, socket="nowhere")

    def test_links(self):
        """This user's links are followed, also to new files; another user's are not."""
        os.symlink("new", os.path.join(self.dir, "link"))
        with _output.replacing(os.path.join(self.dir, "link")) as f:
            f.write(b"1")
        self.assertEqual(Path(self.dir, "new").read_bytes(), b"1")
        self.assertTrue(os.path.islink(os.path.join(self.dir, "link")))
        os.symlink("loop", os.path.join(self.dir, "loop"))
        self.assertRaisesRegex(OSError, "loop", _output.output_path, os.path.join(self.dir, "loop"))
        if os.geteuid() != 0:
            self.skipTest("only root makes links of another user")
        mine, other = self.file("mine", b"mine"), os.path.join(self.dir, "other")
        os.symlink(mine, other)
        os.lchown(other, 65534, 65534)
        os.symlink("other", os.path.join(self.dir, "second"))
        for name in ("other", "second"):
            with self.assertRaisesRegex(gpufd.Error, f"other is a link that user 65534 has put there, to '{mine}'"):
                with _output.replacing(os.path.join(self.dir, name)):
                    self.fail("it was followed")
        part, version = _version.Attached(mock.Mock(size=4)), _version.Version.__new__(_version.Version)
        part._table = _tables.Table(4)
        version.name, version.parts = "x", [part]
        self.assertRaisesRegex(gpufd.Error, "user 65534 has put there", part.save, other)
        os.rename(other, os.path.join(self.dir, "second"))
        self.assertRaisesRegex(gpufd.Error, "user 65534 has put there", version.save, os.path.join(self.dir, "second"))
        self.assertEqual(Path(mine).read_bytes(), b"mine")

    def test_a_full_disk_names_the_file(self):
        path, before = os.path.join(self.dir, "out"), resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
            with self.assertRaises(OSError) as raised, _output.replacing(path) as f:
                f.write(bytes(1 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual(raised.exception.filename, path)
        self.assertEqual(os.listdir(self.dir), [])
        with self.assertRaises(FileNotFoundError) as raised, _output.replacing(os.path.join(self.dir, "none/out")):
            self.fail("there is no such directory")
        self.assertEqual(raised.exception.filename, os.path.join(self.dir, "none/out"))


if __name__ == "__main__":
    unittest.main()
