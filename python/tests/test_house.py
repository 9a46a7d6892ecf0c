"""The shape of the package: its layers, its classes, and what help says of it."""

import ast
import pydoc
import unittest

import common
import gpufd

PACKAGE = common.PACKAGE / "gpufd"
LAYERS = ("wire", "memory", "share", "channel", "keeper", "torch", "transformers", "broadcast", "weights", "gst", "vllm", "aio")  # each may use those before it
BESIDE = {("keeper", "channel"), ("weights", "broadcast")}  # and these may not
KINDS = {"Error", "Memory", "Record", "Source", "Words", "NotCopied", "NoArray"}  # classes that others are a kind of


def modules():
    """The syntax tree of each module, by its name in the package."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = (parts, ast.parse(path.read_text()))
    return found


def imports(parts, tree, names):
    """The modules of the package that one imports, in functions and for type checkers, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*parts[: len(parts) - node.level], *(node.module or "").split(".")]
            for alias in node.names:
                whole, module = (".".join(p for p in (*base, *more) if p) for more in ((alias.name,), ()))
                yield whole if whole in names else module


def cycles(edges):
    """The modules that import themselves by way of others."""
    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for there in edges[todo.pop()] - seen:
                seen.add(there)
                todo.append(there)
        return seen

    return sorted(m for m in edges if m in reach(m))


class House(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        found = modules()
        cls.trees = {name: tree for name, (_, tree) in found.items()}
        cls.edges = {name: {m for m in imports(parts, tree, found) if m != name} for name, (parts, tree) in found.items()}
        cls.edges[""] = set()  # the package's own names are of all layers
        for users in cls.edges.values():
            users.discard("")

    def test_no_cycle(self):
        self.assertGreater(len(self.edges), 50)
        self.assertEqual(cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}}), ["a", "b"])
        self.assertEqual(cycles(self.edges), [])

    def test_layers(self):
        """Imports go down only: none of wire knows of memory, and so on."""
        for name, used in self.edges.items():
            layer = name.partition(".")[0]
            if layer not in LAYERS:
                continue
            for other in {m.partition(".")[0] for m in used} & set(LAYERS):
                self.assertLessEqual(LAYERS.index(other), LAYERS.index(layer), (name, other))
                self.assertNotIn((layer, other), BESIDE, name)

    def test_memory_knows_no_driver(self):
        self.assertEqual(self.edges["memory.base"] & {"memory.cuda", "memory.soft", "memory.libcuda", "memory.drivers"}, set())

    def test_one_class_in_one_place(self):
        """A class of the package inherits from another one only where it is a kind of that."""
        classes = {node.name: node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

        def is_kind(name):
            return name in KINDS or name in classes and any(is_kind(b.id) for b in classes[name].bases if isinstance(b, ast.Name))

        for name, node in classes.items():
            for base in node.bases:
                base = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
                self.assertTrue(base not in classes or is_kind(base), f"{name} inherits from {base}")

    def test_errors_are_few_and_of_the_package(self):
        kinds = [getattr(gpufd, n) for n in gpufd.__all__ if n.endswith("Error")]
        self.assertLessEqual(len(kinds), 21)
        for kind in kinds:
            self.assertTrue(issubclass(kind, gpufd.Error), kind)
            self.assertEqual((kind.__module__, str(kind)), ("gpufd", f"<class 'gpufd.{kind.__name__}'>"))
        lost = gpufd.LostError("gone")
        self.assertIsInstance(lost, ConnectionError)
        self.assertEqual(lost.reason, "lost")

    def test_help_fits_a_screen(self):
        text = pydoc.plain(pydoc.render_doc(gpufd))
        self.assertLess(len(text.splitlines()), 55)
        self.assertIn("attach", dir(gpufd))  # though help does not show each

    def test_no_file_is_long(self):
        for path in PACKAGE.rglob("*.py"):
            with self.subTest(str(path.relative_to(PACKAGE))):
                self.assertLess(len(path.read_text().splitlines()), 550)


if __name__ == "__main__":
    unittest.main()
