"""Odd safetensors files and directories, with what put has to do: the tests of Go and of Python make them.

    python3 odd_files.py DIR

makes DIR, which must not be there, with the files and cases.json, a list of

    name, why   the case
    path        of the file or directory
    want        accept: kept as tensors; bytes: kept as bytes; refuse: one clear line
    says        a word that the refusal has to have
    tensors     that are accepted: their bytes in hexadecimal, by name
"""

import json
import os
import struct
import sys


def raw(head: bytes, data: bytes, length=None) -> bytes:
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def t(dtype, shape, a, b, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [a, b], **more}


def js(obj, pad=0, fill=b" "):
    s = json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return s + fill * pad


def D(n):  # noqa: N802
    return bytes((i * 7 + 3) & 255 for i in range(n))


def one(name, n=8, dtype="U8"):
    return raw(js({name: t(dtype, [n], 0, n)}), D(n))


def idx(m, total=16):
    return json.dumps({"metadata": {"total_size": total}, "weight_map": m}, indent=2).encode()


def put(d, name, content):
    path = os.path.join(d, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content)


def legal(case, dcase, more, big):
    """Files that the format's text or its reference allows, and some that only the reference takes."""
    case("zero_dim", raw(js({"w": t("F32", [2, 2], 0, 16), "e": t("F16", [0, 7], 16, 16)}), D(16)), "accept", "a tensor with a dimension of 0")
    case("only_zero", raw(js({"e": t("F32", [0], 0, 0)}), b""), "refuse", "only zero-sized tensors")
    case("no_tensors", raw(b"{}", b""), "refuse", "no tensors at all")
    case("only_meta", raw(js({"__metadata__": {"format": "pt"}}), b""), "refuse", "metadata and no tensor")
    case("scalar", raw(js({"s": t("F32", [], 0, 4), "n": t("I64", [], 4, 12)}), D(12)), "accept", "0-rank tensors")
    bits = dict(BOOL=8, U8=8, I8=8, F8_E5M2=8, F8_E4M3=8, F8_E8M0=8, F8_E4M3FNUZ=8, F8_E5M2FNUZ=8, I16=16, U16=16, F16=16, BF16=16, I32=32, U32=32,
                F32=32, C64=64, F64=64, I64=64, U64=64, F4=4, F6_E2M3=6, F6_E3M2=6)  # fmt: skip
    for dt, n in bits.items():
        case("dtype_" + dt, raw(js({"w": t(dt, [2, 4], 0, n)}), D(n)), "accept", "dtype " + dt)
    case("dtype_mix", raw(js({"a": t("F4", [2, 4], 0, 4), "b": t("F8_E8M0", [3], 4, 7), "c": t("F64", [1], 7, 15), "d": t("BF16", [1], 15, 17)}), D(17)), "accept", "types of all sizes, unaligned offsets in the data")
    case("meta_unicode", raw(js({"__metadata__": {"作者": "\u00e9\U0001F600 \\ \" \n\t", "": "", "html": "<&>\u2028"}, "w": t("U8", [4], 0, 4)}), D(4)), "accept", "metadata with unicode, escapes, an empty key")
    case("meta_64k", raw(js({"__metadata__": {"k%d" % i: "v" * 300 for i in range(300)}, "w": t("U8", [4], 0, 4)}), D(4)), "accept", "90 kB of metadata (training logs of LoRA tools)")
    case("meta_3m", raw(js({"__metadata__": {"ss_tag_frequency": json.dumps({"tag %d" % i: i for i in range(120000)})}, "w": t("U8", [4], 0, 4)}), D(4)), "accept", "one metadata value of 2.5 MB")
    case("pad_spaces", raw(js({"w": t("U8", [4], 0, 4)}, pad=4096), D(4)), "accept", "header padded with 4096 blanks")
    case("pad_1m", raw(js({"w": t("U8", [4], 0, 4)}, pad=1 << 20), D(4)), "accept", "header padded with 1 MiB of blanks")
    case("pad_newline", raw(js({"w": t("U8", [4], 0, 4)}, pad=3, fill=b"\n"), D(4)), "accept", "padded with newlines: JSON blanks, which the text of the format does not name")
    case("pad_nul", raw(js({"w": t("U8", [4], 0, 4)}, pad=3, fill=b"\0"), D(4)), "refuse", "padded with NUL bytes")
    case("pretty", raw(json.dumps({"w": t("U8", [4], 0, 4)}, indent=2).encode(), D(4)), "accept", "indented JSON with newlines")
    case("desc_order", raw(js({"b": t("U8", [4], 4, 8), "a": t("U8", [4], 0, 4)}), D(8)), "accept", "entries not in the order of their bytes")
    case("names_odd", raw(js({"a/b/c": t("U8", [1], 0, 1), "../../etc/passwd": t("U8", [1], 1, 2), "": t("U8", [1], 2, 3), "模型.权重\U0001F600": t("U8", [1], 3, 4), "a.b..c": t("U8", [1], 4, 5), " ": t("U8", [1], 5, 6), "a\tb\nc\u0000d\u001b[31m": t("U8", [1], 6, 7), "A" * 5000: t("U8", [1], 7, 8), "e\u0301": t("U8", [1], 8, 9), "\u00e9": t("U8", [1], 9, 10)}), D(10)), "accept", "names: slashes, empty, unicode, control characters, 5000 bytes, two normal forms")
    case("rank_64", raw(js({"w": t("U8", [1] * 64 + [4], 0, 4)}), D(4)), "accept", "65 dimensions")
    case("meta_null", raw(b'{"__metadata__":null,"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "accept", "metadata is null (an optional member)")
    case("extra_field", raw(js({"w": t("U8", [4], 0, 4, quant="q4")}), D(4)), "accept", "an additional field in a tensor's entry")
    case("tuple_entry", raw(b'{"w":["U8",[4],[0,4]]}', D(4)), "refuse", "an entry as a list (serde takes structs so)")
    case("lead_blank", raw(b" " + js({"w": t("U8", [4], 0, 4)}), D(4)), "refuse", "a blank before {: the text forbids it, the code takes it")
    case("dup_key_same", raw(b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "a name twice, same entry: the text forbids it, the code takes the last")
    case("zero_overflow", raw(js({"w": t("U8", [4], 0, 4), "e": t("F32", [1 << 40, 1 << 40, 0], 4, 4)}), D(4)), "refuse", "a shape whose product overflows before the 0")
    case("zero_huge", raw(js({"w": t("U8", [4], 0, 4), "e": t("F32", [0, 1 << 40, 1 << 40], 4, 4)}), D(4)), "accept", "a 0 first, then huge dimensions")


def illegal(case, dcase, more, big):
    """Files that break the format."""
    case("empty_file", b"", "refuse", "0 bytes")
    case("short_7", b"1234567", "refuse", "7 bytes")
    case("len_zero_data", struct.pack("<Q", 0) + D(16), "refuse", "header length 0 and data")
    case("len_huge", struct.pack("<Q", 2**64 - 1) + b"{}", "refuse", "header length 2^64-1")
    case("len_beyond", raw(b"{}", b"", length=100), "refuse", "header longer than the file")
    big("len_101m", 101_000_000, "refuse", "a real header of 101 MB")
    big("len_100m", 100_000_000, "accept", "a header of exactly 100,000,000 bytes")
    case("cut", raw(js({"w": t("U8", [4], 0, 4)}), D(3)), "refuse", "the last byte is missing (download that ended early)")
    case("overlap", raw(js({"a": t("U8", [4], 0, 4), "b": t("U8", [4], 2, 6)}), D(6)), "refuse", "tensors overlap")
    case("dtype_c128", raw(js({"a": t("C128", [1], 0, 16)}), D(16)), "refuse", "dtype C128 (complex128)")
    case("dtype_lower", raw(js({"a": t("float32", [1], 0, 4)}), D(4)), "refuse", "dtype float32")
    case("f4_odd", raw(js({"a": t("F4", [7], 0, 4)}), D(4)), "refuse", "seven numbers of 4 bits: 3.5 bytes")
    case("neg_shape", raw(js({"a": t("U8", [-4], 0, 4)}), D(4)), "refuse", "a negative dimension")
    case("neg_zero", raw(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[-0,4]}}', D(4)), "refuse", "-0 as offset")
    case("float_shape", raw(b'{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}', D(4)), "refuse", "4.0 as a dimension")
    case("big_shape", raw(js({"a": t("U8", [2**64, 0], 0, 0), "w": t("U8", [4], 0, 4)}), D(4)), "refuse", "a dimension of 2^64")
    case("missing_field", raw(b'{"a":{"dtype":"U8","data_offsets":[0,4]}}', D(4)), "refuse", "no shape")
    case("meta_number", raw(b'{"__metadata__":{"step":1000},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "metadata with a number")
    case("meta_nested", raw(b'{"__metadata__":{"config":{"a":"b"}},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "metadata with an object")
    case("meta_dup", raw(b'{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"},"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "metadata twice")
    case("dup_key_diff", raw(b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}', D(8)), "refuse", "a name twice, other bytes")
    case("lone_surrogate", raw(b'{"w\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "half a surrogate pair in a name")
    case("bad_utf8", raw(b'{"w\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "header is not UTF-8")
    case("bom", raw(b"\xef\xbb\xbf" + js({"w": t("U8", [4], 0, 4)}), D(4)), "refuse", "a byte order mark")
    case("utf16", raw(json.dumps({"w": t("U8", [4], 0, 4)}).encode("utf-16-le"), D(4)), "refuse", "UTF-16")
    case("raw_ctrl", raw(b'{"w\x01":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', D(4)), "refuse", "an unescaped control character")
    case("json_comment", raw(b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}/* */}', D(4)), "refuse", "a comment")
    case("json_list", raw(b'[]', b""), "refuse", "header is a list")
    case("json_two", raw(b'{}{}', b""), "refuse", "two objects")
    case("deep", raw(b'{"w":' + b'[' * 100000 + b']' * 100000 + b'}', b""), "refuse", "100,000 brackets")
    case("nan", raw(b'{"w":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', D(4)), "refuse", "NaN as a dimension")
    case("big_endian_len", struct.pack(">Q", len(js({"w": t("U8", [4], 0, 4)}))) + js({"w": t("U8", [4], 0, 4)}) + D(4), "refuse", "length in the other byte order")


def others(case, dcase, more, big):
    """Other things that are given the name of a model, and what is kept as bytes."""
    case("lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393" + b"\nsize 4976698672\n", "refuse", "a git LFS pointer", says="LFS")
    case("html", b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>Access denied</body></html>", "refuse", "a login page saved as the model", says="HTML")
    case("json_err", b'{"error":"Repository not found"}', "refuse", "an error answer saved as the model")
    case("zeros", bytes(4096), "refuse", "a preallocated file of zeros (download under way)")
    case("pickle_zip", b"PK\x03\x04" + D(200), "refuse", "an archive of torch.save", says="PyTorch")
    case("gguf_named", b"GGUF" + D(100), "refuse", "a GGUF file", says="GGUF")
    case("lfs_bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "refuse", "a git LFS pointer of another file", file="model.bin", says="LFS")
    case("lfs_json", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "refuse", "a git LFS pointer of another file", file="tokenizer.json", says="LFS")
    case("bytes_bin", D(4096), "bytes", "a file of another kind", file="model.bin")
    case("bytes_gguf", b"GGUF" + D(100), "bytes", "a GGUF file under its name", file="model.gguf")
    case("bytes_json", b'{"architectures":["LlamaForCausalLM"]}', "bytes", "JSON that is no index", file="config.json")
    case("cut_noext", one("a")[:-1], "refuse", "the last byte is missing, in a file without a suffix", file="weights")


def directories(case, dcase, more, big):
    """Directories, indexes and caches."""
    S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    dcase("d_missing_shard", {S1: one("a"), "model.safetensors.index.json": idx({"a": S1, "b": S2})}, "refuse", "the index names a shard that is not there", says="00002-of-00002")
    dcase("d_missing_noindex", {S1: one("a")}, "refuse", "shard 1 of 2 alone, without an index", says="00002-of-00002")
    dcase("d_wrong_shard", {S1: one("a"), S2: one("b"), "model.safetensors.index.json": idx({"a": S2, "b": S1})}, "refuse", "tensors are in other shards than the index says")
    dcase("d_extra_tensor", {S1: raw(js({"a": t("U8", [4], 0, 4), "x": t("U8", [4], 4, 8)}), D(8)), S2: one("b"), "model.safetensors.index.json": idx({"a": S1, "b": S2})}, "accept", "a shard has a tensor that the index does not know", of=[S1, S2])
    dcase("d_dup_shard", {S1: raw(js({"a": t("U8", [4], 0, 4), "x": t("U8", [4], 4, 8)}), D(8)), S2: raw(js({"b": t("U8", [4], 0, 4), "x": t("U8", [4], 4, 8)}), D(8)), "model.safetensors.index.json": idx({"a": S1, "b": S2, "x": S2})}, "accept", "a tensor in two shards; loaders take the one of the index or the last", of=[S1, S2])
    dcase("d_extra_file", {"model.safetensors": one("a"), "consolidated.safetensors": one("a_other_name")}, "refuse", "two forms of one model under other names (Mistral), no index", says="consolidated")
    dcase("d_variant_index", {"m.fp16-00001-of-00001.safetensors": one("a"), "m.safetensors.index.fp16.json": idx({"a": "m.fp16-00001-of-00001.safetensors"})}, "accept", "an index of a variant, given by its path", arg="m.safetensors.index.fp16.json", of=["m.fp16-00001-of-00001.safetensors"])
    dcase("d_index_any_json", {S1: one("a"), "index.json": idx({"a": S1})}, "accept", "an index under another name, given by its path", arg="index.json", of=[S1])
    dcase("d_appledouble", {"model.safetensors": one("a"), "._model.safetensors": b"\x00\x05\x16\x07" + D(200)}, "accept", "a macOS ._ file beside the model", of=["model.safetensors"])
    dcase("d_subdir", {"unet/diffusion_pytorch_model.safetensors": one("a"), "vae/diffusion_pytorch_model.safetensors": one("a"), "model_index.json": b"{}"}, "refuse", "a pipeline of diffusers: files in subdirectories only")
    dcase("d_subdir_index", {"sub/" + S1: one("a"), "model.safetensors.index.json": idx({"a": "sub/" + S1})}, "accept", "an index that names a file in a subdirectory", of=["sub/" + S1])
    dcase("d_gguf_only", {"model-Q4_K_M.gguf": b"GGUF" + D(100)}, "refuse", "only a GGUF file", says="gguf")
    dcase("d_bin_only", {"pytorch_model.bin": b"PK\x03\x04" + D(100)}, "refuse", "only a file of PyTorch's", says="pytorch_model.bin")
    dcase("d_variants", {"model.safetensors": one("a"), "model.fp16.safetensors": one("a", 4)}, "refuse", "two forms of one model", says="fp16")
    dcase("d_two_index", {S1: one("a"), "model.safetensors.index.json": idx({"a": S1}), "model.safetensors.index.fp16.json": idx({"a": S1})}, "refuse", "two indexes", says="fp16")
    dcase("d_shards", {S1: one("a"), S2: one("b")}, "accept", "all shards without an index", of=[S1, S2])
    dcase("d_shards_of_two", {S1: one("a"), S2: one("b"), "x-" + S1: one("c"), "x-" + S2: one("d")}, "refuse", "the shards of two models", says="x-model")
    dcase("d_dup_noindex", {S1: one("a"), S2: one("a")}, "refuse", "a tensor in two shards, and no index", says="twice")
    dcase("d_empty", {}, "refuse", "an empty directory")
    dcase("d_dirnamed", {"x.safetensors/readme": b"x", "model.safetensors": one("a")}, "accept", "a subdirectory named x.safetensors beside the model", of=["model.safetensors"])
    dcase("d_index_empty", {"model.safetensors": one("a"), "model.safetensors.index.json": idx({})}, "refuse", "an index without tensors")
    dcase("d_index_bom", {S1: one("a"), "model.safetensors.index.json": b"\xef\xbb\xbf" + idx({"a": S1})}, "refuse", "an index with a byte order mark")
    dcase("d_index_nan", {S1: one("a"), "model.safetensors.index.json": b'{"metadata":{"total_size":NaN},"weight_map":{"a":"%s"}}' % S1.encode()}, "accept", "an index with NaN, as Python writes it", of=[S1])
    # Hugging Face cache
    d = case("d_hfcache", None, "accept", "snapshots/REV/* are links to ../../blobs/SHA", arg="snapshots/abc", of=["blobs/4d7a21", "blobs/99ff00"])
    put(d, "blobs/4d7a21", one("a")); put(d, "blobs/99ff00", one("b")); put(d, "blobs/idx", idx({"a": S1, "b": S2}))
    os.makedirs(d + "/snapshots/abc"); os.makedirs(d + "/refs"); put(d, "refs/main", b"abc")
    for link, blob in ((S1, "4d7a21"), (S2, "99ff00"), ("model.safetensors.index.json", "idx")):
        os.symlink("../../blobs/" + blob, d + "/snapshots/abc/" + link)
    more("d_hfcache_file", d + "/snapshots/abc/" + S1, "accept", "one link of the cache")
    more("d_hfcache_blob", d + "/blobs/4d7a21", "accept", "the blob itself: a name without a suffix")
    more("d_hfcache_repo", d, "refuse", "the repository's folder of the cache, as people copy it (models--org--name)")
    more("d_hfcache_index", d + "/blobs/idx", "refuse", "the blob of an index")
    d = case("d_hfcache_broken", None, "refuse", "a link whose blob is not there yet", arg="snapshots/abc", says="model.safetensors")
    os.makedirs(d + "/snapshots/abc"); os.symlink("../../blobs/none", d + "/snapshots/abc/model.safetensors")
    case("upper", one("a"), "accept", "model.SAFETENSORS", file="model.SAFETENSORS")
    case("noext", one("a"), "accept", "a file without a suffix", file="weights")


def tensors(paths):
    """The tensors of files, by name; the last one counts."""
    there = {}
    for path in paths:
        with open(path, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]).strip())
            data = f.read()
        for name, entry in head.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                there[name] = data[begin:end].hex()
    return there


def make(out):
    """Make all files in a directory, and return the cases."""
    os.makedirs(out)
    cases, parts = [], {}

    def more(name, path, want, why, says="", of=None):
        cases.append({"name": name, "path": path, "want": want, "why": why, "says": says})
        parts[name] = of or [path]

    def case(name, content, want, why, file="model.safetensors", arg=None, says="", of=None):
        d = os.path.join(out, name)
        os.makedirs(d)
        if content is not None:
            put(d, file, content)
        more(name, os.path.join(d, file if arg is None else arg), want, why, says, of and [os.path.join(d, n) for n in of])
        return d

    def dcase(name, files, want, why, arg="", says="", of=None):
        d = case(name, None, want, why, arg=arg, says=says, of=of)
        for k, v in files.items():
            put(d, k, v)

    def big(name, length, want, why):
        d = case(name, None, want, why, arg="model.safetensors")
        head = js({"w": t("U8", [4], 0, 4)})
        with open(d + "/model.safetensors", "wb") as f:
            f.write(struct.pack("<Q", length) + (head.ljust(length) + D(4) if want == "accept" else head))
            f.truncate(8 + length + 4)  # of zeros, which nobody reads

    for group in (legal, illegal, others, directories):
        group(case, dcase, more, big)
    for c in cases:
        if c["want"] == "accept":
            c["tensors"] = tensors(parts[c["name"]])
    return cases


if __name__ == "__main__":
    made = make(sys.argv[1])
    with open(os.path.join(sys.argv[1], "cases.json"), "w") as listed:
        json.dump(made, listed)
