package weights

import (
	"encoding/binary"
	"math"
	"strings"
)

var littleEndian = binary.LittleEndian

const (
	first   = 1
	last    = 2
	givenUp = 4
)

// Tensors that the vectors are made of.
var (
	aWeight = tensorVector{Name: "a.weight", DType: "BF16", Shape: []uint64{4, 8}, At: 0, Bytes: 64}
	aBias   = tensorVector{Name: "a.bias", DType: "F32", Shape: []uint64{3}, At: 256, Bytes: 12}
	scale   = tensorVector{Name: "scale", DType: "F64", Shape: []uint64{}, At: 512, Bytes: 8}
)

func goodFrames() (all []frameVector) {
	add := func(name, comment string, d draft, tensors ...tensorVector) {
		v := d.vector(name, comment)
		if tensors == nil {
			tensors = []tensorVector{}
		}
		v.Frame = &frameContent{d.flags&first != 0, d.flags&last != 0, d.flags&givenUp != 0, d.number, d.step, d.bucket, d.at, tensors}
		all = append(all, v)
	}
	plain := func(tensors ...tensorVector) draft {
		return draft{flags: first | last, number: 1, step: 7, at: 768, table: tableOf(tensors...)}
	}
	add("one bucket", "An update of three tensors in one frame.", plain(aWeight, aBias, scale), aWeight, aBias, scale)
	d := plain(aWeight, aBias)
	d.flags, d.number, d.step, d.bucket, d.size = 0, 1<<40, math.MinInt64, 1<<31, 1<<20
	add("large numbers", "A bucket in the middle of an update, at the smallest step; the frame goes on behind the table.", d, aWeight, aBias)
	d = plain()
	d.at, d.table = 0, ""
	add("nothing", "An update without tensors.", d)
	add("given up at once", "An update whose first frame says that it was given up.", draft{flags: first | givenUp, number: 9, step: -1})
	add("given up", "An update that is given up behind two buckets.", draft{flags: givenUp, number: 9, step: 3, bucket: 2})
	add("no table", "Without tensors at and digest mean nothing.", draft{flags: last, number: 2, bucket: 5, at: 4096, digest: &[32]byte{1}, size: 10})

	shard := tensorVector{Name: "w", DType: "F16", Shape: []uint64{2, 8}, At: 0, Bytes: 32, Of: &shardVector{[]uint64{8, 8}, []uint64{6, 0}}}
	add("a shard", "The last two rows of eight.", plain(shard), shard)
	begin := tensorVector{Name: "w", DType: "F32", Shape: []uint64{1024}, At: 256, Bytes: 1024}
	end := tensorVector{Name: "w", DType: "F32", Shape: []uint64{1024}, At: 1280, Bytes: 3072, From: 1024}
	d = plain(begin)
	d.flags, d.at = first, 1280
	add("a first piece", "1,024 of 4,096 bytes.", d, begin)
	d = draft{flags: first | last, number: 1, at: 4352, table: tableOf(begin, end)}
	add("pieces in one bucket", "Both pieces of a tensor.", d, begin, end)

	tied := aWeight
	tied.Name = "tied"
	add("tied", "Two tensors at the same bytes.", plain(aWeight, tied), aWeight, tied)
	empty := tensorVector{Name: "empty", DType: "I64", Shape: []uint64{0, 5}, At: 768}
	add("no bytes", "A tensor with no elements, which is whole, at the table's place.", plain(empty, scale), empty, scale)
	var types []tensorVector
	for _, x := range []struct {
		dtype string
		bytes uint64
	}{
		{"BOOL", 8}, {"U8", 8}, {"I8", 8}, {"U16", 16}, {"I16", 16}, {"U32", 32}, {"I32", 32}, {"U64", 64}, {"I64", 64}, {"F16", 16}, {"BF16", 16}, {"F32", 32}, {"F64", 64}, {"C64", 64},
		{"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
	} {
		types = append(types, tensorVector{Name: x.dtype, DType: x.dtype, Shape: []uint64{8}, At: uint64(len(types)) * 256, Bytes: x.bytes})
	}
	add("types", "Eight elements of each type.", draft{flags: first | last, number: 1, at: 22 * 256, table: tableOf(types...)}, types...)
	long := aWeight
	long.Name = strings.Repeat("é", 512)
	add("a long name", "1,024 bytes.", plain(long), long)

	text := "{\"later\":{\"at\":[1,{}]},\n\t\"tensors\" : [ {\"bytes\":64,\"NAME\":\"b\",\"At\":3,\"shape\":[4,8],\"stride\":[8,1],\"dtype\":\"BF16\",\"at\":0,\"name\":\"a\\u002e\\ud83d\\ude00\\n\",\"from\":0} ] } "
	odd := tensorVector{Name: "a.😀\n", DType: "BF16", Shape: []uint64{4, 8}, Bytes: 64}
	add("unknown members", "Members that are not known, some of which differ in case alone; spaces, another order, escapes.", draft{flags: first | last, number: 1, at: 64, table: text}, odd)
	add("bounds", "Members that are not known: 64 lists and objects within one another, and numbers of 64 characters.",
		draft{flags: first | last, number: 1, at: 64, table: deep(63, strings.Repeat("1", 64)+",-0,1e999")}, tensorVector{Name: "a", DType: "U8", Shape: []uint64{}, Bytes: 1})
	return all
}

// deep is a table with that text in so many lists, which lie in the object.
func deep(lists int, text string) string {
	return `{"tensors":[{"name":"a","dtype":"U8","shape":[],"at":0,"bytes":1}],"later":` + strings.Repeat("[", lists) + text + strings.Repeat("]", lists) + `}`
}

func refusedFrames() (all []frameVector) {
	add := func(name, reason string, d draft) {
		v := d.vector(name, "")
		v.Reason = reason
		all = append(all, v)
	}
	// with is a good frame of these tensors, but for what change does to it.
	with := func(change func(*draft), tensors ...tensorVector) draft {
		if tensors == nil {
			tensors = []tensorVector{aWeight, aBias}
		}
		d := draft{flags: first | last, number: 1, step: 7, at: 768, table: tableOf(tensors...)}
		if change != nil {
			change(&d)
		}
		return d
	}
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	add("no own bytes", "own bytes of another length", with(func(d *draft) { d.user = cut(0) }))
	add("too short", "own bytes of another length", with(func(d *draft) { d.user = cut(79) }))
	add("too long", "own bytes of another length", with(func(d *draft) { d.user = func(b []byte) []byte { return append(b, 0) } }))
	add("another magic", "the magic", with(func(d *draft) { d.user = func(b []byte) []byte { b[3] = 'V'; return b } }))
	add("unknown flag", "a flag that is not known", with(func(d *draft) { d.flags |= 8 }))
	add("number 0", "updates count from 1", with(func(d *draft) { d.number = 0 }))
	add("first in bucket 1", "bucket 0 is first, and no other is", with(func(d *draft) { d.bucket = 1 }))
	add("bucket 0 that is not first", "bucket 0 is first, and no other is", with(func(d *draft) { d.flags = last }))
	add("last and given up", "an update is whole or given up", draft{flags: first | last | givenUp, number: 1})
	add("given up with tensors", "a frame that gives up has no tensors", with(func(d *draft) { d.flags = first | givenUp }))
	add("a table of nothing", "tensors is 0, and bytes is not", draft{flags: first | last, number: 1, table: `{"tensors":[]}`})
	add("no table", "tensors is 1, and bytes is 0", draft{flags: first | last, number: 1, tensors: new(uint32(1))})

	add("table at 772", "at is no multiple of 8", with(func(d *draft) { d.at = 772 }))
	add("table of more than 8 MiB", "a table that is too large", with(func(d *draft) { d.bytes, d.size = new(uint64(8<<20+1)), 1<<30 }))
	add("table behind the frame", "a table that ends behind the frame's bytes", with(func(d *draft) { d.size = 800 }))
	add("table behind all frames", "a table that ends behind the frame's bytes: at and bytes make more than 64 bits", with(func(d *draft) { d.at, d.size = 1<<64-8, 1<<20 }))
	add("more tensors than there are", "the table has another number of entries", with(func(d *draft) { d.tensors = new(uint32(3)) }))
	add("fewer tensors than there are", "the table has another number of entries", with(func(d *draft) { d.tensors = new(uint32(1)) }))
	add("2^20 + 1 tensors", "too many tensors", with(func(d *draft) { d.tensors = new(uint32(1<<20 + 1)) }))
	add("another digest", "the table has another digest", with(func(d *draft) { d.digest = &[32]byte{1} }))

	for _, x := range [][3]string{
		{"no JSON", `{"tensors":[`, "no JSON"},
		{"two objects", tableOf(aWeight) + tableOf(aWeight), "text behind the object"},
		{"a list", `[{"name":"a","dtype":"U8","shape":[],"at":0,"bytes":1}]`, "no object"},
		{"no list", `{"tensors":{"name":"a"}}`, "tensors is no list"},
		{"no tensors", `{"Tensors":[{"name":"a","dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "no member tensors"},
		{"no object", `{"tensors":["a"]}`, "an entry is no object"},
		{"null", `{"tensors":[null]}`, "an entry is no object"},
		{"no UTF-8", "{\"tensors\":[{\"name\":\"a\xff\",\"dtype\":\"U8\",\"shape\":[],\"at\":0,\"bytes\":1}]}", "no UTF-8"},
		{"half a pair", `{"tensors":[{"name":"a\ud83d","dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "half a surrogate pair, which is no character"},
		{"NaN", `{"tensors":[{"name":"a","dtype":"U8","shape":[],"at":0,"bytes":1,"later":NaN}]}`, "no JSON"},
		{"no name", `{"tensors":[{"dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "no member name"},
		{"empty name", `{"tensors":[{"name":"","dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "a name without bytes"},
		{"name too long", `{"tensors":[{"name":"` + strings.Repeat("é", 513) + `","dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "a name of 1,026 bytes"},
		{"a number as name", `{"tensors":[{"name":1,"dtype":"U8","shape":[],"at":0,"bytes":1}]}`, "a name that is no text"},
		{"no dtype", `{"tensors":[{"name":"a","shape":[],"at":0,"bytes":1}]}`, "no member dtype"},
		{"unknown dtype", `{"tensors":[{"name":"a","dtype":"bf16","shape":[],"at":0,"bytes":2}]}`, "a type that is not known"},
		{"no shape", `{"tensors":[{"name":"a","dtype":"U8","at":0,"bytes":1}]}`, "no member shape"},
		{"null for a shape", `{"tensors":[{"name":"a","dtype":"U8","shape":null,"at":0,"bytes":1}]}`, "a shape that is no list"},
		{"no at", `{"tensors":[{"name":"a","dtype":"U8","shape":[],"bytes":1}]}`, "no member at"},
		{"no bytes", `{"tensors":[{"name":"a","dtype":"U8","shape":[],"at":0}]}`, "no member bytes"},
		{"null for a number", `{"tensors":[{"name":"a","dtype":"U8","shape":[],"at":null,"bytes":1}]}`, "at is no number"},
		{"null for from", `{"tensors":[{"name":"a","dtype":"U8","shape":[],"at":0,"bytes":1,"from":null}]}`, "from is no number"},
		{"negative", `{"tensors":[{"name":"a","dtype":"U8","shape":[-1],"at":0,"bytes":1}]}`, "a number below 0"},
		{"a fraction", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1.0}]}`, "a number with a fraction"},
		{"an exponent", `{"tensors":[{"name":"a","dtype":"U8","shape":[10],"at":0,"bytes":1e1}]}`, "a number with an exponent"},
		{"a sign", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":-0,"bytes":1}]}`, "a number with a sign"},
		{"a member twice", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1,"bytes":1}]}`, "a member that comes twice"},
		{"a member twice, escaped", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1,"b\u0079tes":1}]}`, "a member that comes twice"},
		{"tensors twice", `{"tensors":[],"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1}]}`, "a member that comes twice"},
		{"a member twice in one that is not known", deep(1, `{"a":1,"a":2}`), "a member that comes twice"},
		{"half a pair in a member", deep(1, `{"a\ud83d":1}`), "a member whose name has half a surrogate pair"},
		{"65 lists and objects", deep(64, ""), "more than 64 lists and objects within one another"},
		{"9,000 lists", deep(9000, ""), "more than 64 lists and objects within one another"},
		{"a number of 65 characters", deep(1, strings.Repeat("1", 65)), "a number of more than 64 characters"},
		{"a fraction of 65 characters", deep(1, "1."+strings.Repeat("1", 63)), "a number of more than 64 characters"},
		{"true for 1", `{"tensors":[{"name":"a","dtype":"U8","shape":[true],"at":0,"bytes":1}]}`, "a number that is none"},
		{"2^63", `{"tensors":[{"name":"a","dtype":"U8","shape":[9223372036854775808,0],"at":0,"bytes":0}]}`, "a number of more than 63 bits"},
		{"of is a list", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1,"of":[1]}]}`, "of is no object"},
		{"of without begin", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1,"of":{"shape":[2]}}]}`, "of has no member begin"},
		{"null for of", `{"tensors":[{"name":"a","dtype":"U8","shape":[1],"at":0,"bytes":1,"of":null}]}`, "of is no object"},
	} {
		add(x[0], x[2], draft{flags: first | last, number: 1, at: 256, table: x[1], tensors: new(uint32(1))})
	}

	changed := func(f func(*tensorVector)) draft {
		x := aWeight
		f(&x)
		return with(nil, x)
	}
	add("at 128", "at is no multiple of 256", changed(func(x *tensorVector) { x.At = 128 }))
	add("behind the table", "a tensor that ends behind the beginning of the table", changed(func(x *tensorVector) { x.At = 768 }))
	add("over 64 bits", "a tensor that ends behind the beginning of the table: at and bytes make more than 63 bits", changed(func(x *tensorVector) {
		x.At = 1<<63 - 256
		x.Shape = []uint64{1 << 62}
		x.DType = "U8"
		x.Bytes = 1 << 62
	}))
	add("more bytes than the tensor", "bytes exceed the tensor's size", changed(func(x *tensorVector) { x.Bytes = 66 }))
	add("fewer bytes than the tensor", "the last frame leaves a tensor unfinished", changed(func(x *tensorVector) { x.Bytes = 62 }))
	add("a shape of too many bytes", "the shape has no number of bytes that fits 64 bits", changed(func(x *tensorVector) { x.Shape = []uint64{1 << 32, 1 << 32} }))
	add("a shape of too many bytes before 0", "the shape has no number of bytes that fits 64 bits", changed(func(x *tensorVector) { x.Shape, x.Bytes = []uint64{1 << 62, 1 << 62, 0}, 0 }))
	add("half a byte", "the shape has no whole number of bytes", changed(func(x *tensorVector) { x.DType, x.Shape, x.Bytes = "F4", []uint64{3}, 2 }))
	add("an empty piece", "a piece without bytes", changed(func(x *tensorVector) { x.Bytes = 0 }))
	add("the end alone", "from is 32, and no piece came before", changed(func(x *tensorVector) { x.From, x.Bytes = 32, 32 }))
	add("the end of nothing", "from is 1 in a tensor without bytes", changed(func(x *tensorVector) { x.Shape, x.From, x.Bytes = []uint64{0}, 1, 0 }))
	add("a name twice", "a name that comes twice", with(nil, aWeight, aWeight))
	add("a slice of other dimensions", "the slice has other dimensions than the whole", changed(func(x *tensorVector) { x.Of = &shardVector{[]uint64{64}, []uint64{0}} }))
	add("begin of other dimensions", "the slice has other dimensions than the whole", changed(func(x *tensorVector) { x.Of = &shardVector{[]uint64{8, 8}, []uint64{0}} }))
	add("a slice beyond its whole", "the slice exceeds its whole", changed(func(x *tensorVector) { x.Of = &shardVector{[]uint64{8, 8}, []uint64{5, 0}} }))
	add("a slice that begins nowhere", "the slice exceeds its whole", changed(func(x *tensorVector) { x.Of = &shardVector{[]uint64{8, 8}, []uint64{1<<63 - 1, 0}} }))

	begin := tensorVector{Name: "w", DType: "F32", Shape: []uint64{64}, Bytes: 128}
	end := tensorVector{Name: "w", DType: "F32", Shape: []uint64{64}, At: 256, Bytes: 128, From: 128}
	apart := func(f func(*tensorVector)) draft {
		x := end
		f(&x)
		return with(nil, begin, x)
	}
	add("a tensor between pieces", "pieces out of order", with(func(d *draft) { d.at = 1024 }, begin, scale, end))
	add("a gap between pieces", "pieces out of order", apart(func(x *tensorVector) { x.From, x.Bytes = 132, 124 }))
	add("pieces that overlap", "pieces out of order", apart(func(x *tensorVector) { x.From, x.Bytes = 124, 132 }))
	add("the first piece twice", "pieces out of order", apart(func(x *tensorVector) { x.From = 0 }))
	add("pieces of other types", "pieces that differ in their type", apart(func(x *tensorVector) { x.DType = "I32" }))
	add("pieces of other shapes", "pieces that differ in their shape", apart(func(x *tensorVector) { x.Shape = []uint64{8, 8} }))
	add("pieces of other slices", "pieces that differ in of", apart(func(x *tensorVector) { x.Of = &shardVector{[]uint64{64}, []uint64{0}} }))
	return all
}
