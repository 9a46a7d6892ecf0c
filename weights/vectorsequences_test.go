package weights

import "strings"

// A sequence is a channel in the making: its frames, and what a reader makes of them.
type sequence struct{ v sequenceVector }

func newSequence(name, comment string) *sequence {
	return &sequence{sequenceVector{Name: name, Comment: comment, Frames: []frameVector{}, Outcome: []outcome{}}}
}

// frame appends a frame of these tensors, whose steps are ten times their numbers.
func (s *sequence) frame(flags uint32, number uint64, bucket uint32, tensors ...tensorVector) *sequence {
	d := draft{flags: flags, number: number, step: int64(number) * 10, bucket: bucket}
	for _, x := range tensors {
		d.at = max(d.at, (x.At+x.Bytes+7)&^7)
	}
	if tensors != nil {
		d.table = tableOf(tensors...)
	}
	return s.draft(d)
}

func (s *sequence) draft(d draft) *sequence {
	s.v.Frames = append(s.v.Frames, d.vector("", ""))
	return s
}

// known says that the reader knows the table of the last frame, which is not written.
func (s *sequence) known() *sequence {
	f := &s.v.Frames[len(s.v.Frames)-1]
	f.Table, f.TableHex = nil, ""
	return s
}

func (s *sequence) whole(number uint64, tensors ...outcomeTensor) *sequence {
	s.v.Outcome = append(s.v.Outcome, outcome{Event: "whole", Number: number, Step: new(int64(number) * 10), Tensors: tensors})
	return s
}

func (s *sequence) torn(number uint64) *sequence {
	s.v.Outcome = append(s.v.Outcome, outcome{Event: "torn", Number: number, Step: new(int64(number) * 10)})
	return s
}

func (s *sequence) skipped(frames ...int) *sequence { return s.each("skipped", frames) }
func (s *sequence) refused(frame int) *sequence     { return s.each("refused", []int{frame}) }

func (s *sequence) each(event string, frames []int) *sequence {
	for _, i := range frames {
		s.v.Outcome = append(s.v.Outcome, outcome{Event: event, Frame: new(i)})
	}
	return s
}

// in is a tensor that came whole in that frame.
func in(frame uint64, x tensorVector) outcomeTensor {
	return outcomeTensor{x.Name, [][3]uint64{{frame, x.At, x.Bytes}}}
}

// piece is so many bytes of a tensor "w" of 1,024 numbers, from that byte on.
func piece(at, from, bytes uint64) tensorVector {
	return tensorVector{Name: "w", DType: "F32", Shape: []uint64{1024}, At: at, Bytes: bytes, From: from}
}

// sequences are channels. Updates of two buckets have a.weight and a.bias in the first one, and scale in the second.
func sequences() (all []sequenceVector) {
	add := func(s *sequence) { all = append(all, s.v) }
	second := func(s *sequence, number uint64) *sequence { return s.frame(last, number, 1, scale) }
	two := func(s *sequence, number uint64) *sequence {
		return second(s.frame(first, number, 0, aWeight, aBias), number)
	}
	wholeAt := func(s *sequence, number, frame uint64) *sequence {
		return s.whole(number, in(frame, aWeight), in(frame, aBias), in(frame+1, scale))
	}
	add(newSequence("nothing", "The writer ends at once."))
	add(wholeAt(two(newSequence("whole", "An update of two buckets."), 1), 1, 0))
	s := two(newSequence("again and again", "The tables of further updates are known. Numbers may leave some out."), 1)
	s.frame(first, 2, 0, aWeight, aBias).known().frame(last, 2, 1, scale).known()
	s.frame(first, 9, 0, aWeight, aBias).known().frame(last, 9, 1, scale).known()
	add(wholeAt(wholeAt(wholeAt(s, 1, 0), 2, 2), 9, 4))
	add(newSequence("in place", "Each update is one frame, in the one slot; the last one has no tensors.").
		frame(first|last, 1, 0, aWeight, aBias).frame(first|last, 2, 0, aWeight, aBias).known().frame(first|last, 3, 0).
		whole(1, in(0, aWeight), in(0, aBias)).whole(2, in(1, aWeight), in(1, aBias)).whole(3))
	add(newSequence("an empty last bucket", "The last bucket only says that the update is whole.").
		frame(first, 4, 0, scale).frame(0, 4, 1).frame(last, 4, 2).whole(4, in(0, scale)))
	shard := tensorVector{Name: "w", DType: "F16", Shape: []uint64{2, 8}, Bytes: 32, Of: &shardVector{[]uint64{8, 8}, []uint64{2, 0}}}
	other := tensorVector{Name: "v", DType: "F16", Shape: []uint64{8, 2}, Bytes: 32, Of: &shardVector{[]uint64{8, 8}, []uint64{0, 2}}}
	add(newSequence("shards", "A slice of rows and one of columns.").frame(first, 1, 0, shard).frame(last, 1, 1, other).whole(1, in(0, shard), in(1, other)))

	add(newSequence("pieces", "A tensor in three buckets, behind another one and before another one.").
		frame(first, 1, 0, aWeight, piece(256, 0, 1024)).frame(0, 1, 1, piece(0, 1024, 2048)).frame(last, 1, 2, piece(0, 3072, 1024), tensorVector{Name: "scale", DType: "F64", Shape: []uint64{}, At: 1024, Bytes: 8}).
		whole(1, in(0, aWeight), outcomeTensor{"w", [][3]uint64{{0, 256, 1024}, {1, 0, 2048}, {2, 0, 1024}}}, outcomeTensor{"scale", [][3]uint64{{2, 1024, 8}}}))
	add(newSequence("pieces around nothing", "A bucket without tensors lies between the pieces.").
		frame(first, 1, 0, piece(0, 0, 4000)).frame(0, 1, 1).frame(last, 1, 2, piece(0, 4000, 96)).
		whole(1, outcomeTensor{"w", [][3]uint64{{0, 0, 4000}, {2, 0, 96}}}))
	add(newSequence("pieces of a torn update", "The next update begins the tensor anew.").
		frame(first, 1, 0, piece(0, 0, 4000)).frame(givenUp, 1, 1).frame(first|last, 2, 0, piece(0, 0, 4096)).
		torn(1).whole(2, outcomeTensor{"w", [][3]uint64{{2, 0, 4096}}}))

	add(newSequence("torn by the end", "The writer ends, or is killed, within an update.").frame(first, 1, 0, aWeight, aBias).torn(1))
	add(wholeAt(two(newSequence("torn by a gap", "Bucket 1 is missing; the next update is whole.").frame(first, 1, 0, scale).frame(0, 1, 2).frame(last, 1, 3), 2).torn(1).skipped(1, 2), 2, 3))
	add(wholeAt(two(newSequence("a bucket twice", "Bucket 1 comes a second time.").frame(first, 1, 0, scale).frame(0, 1, 1).frame(0, 1, 1).frame(last, 1, 2), 2).torn(1).skipped(2, 3), 2, 4))
	add(wholeAt(two(newSequence("given up", "The trainer gives up behind one bucket.").frame(first, 1, 0, aWeight, aBias).frame(givenUp, 1, 1), 2).torn(1), 2, 2))
	add(wholeAt(two(newSequence("given up at once", "The trainer gives up before the first bucket.").frame(first|givenUp, 1, 0), 2).torn(1), 2, 1))
	add(second(newSequence("a second update begins", "Update 1 has no end.").frame(first, 1, 0, aBias).frame(first, 2, 0, aWeight), 2).torn(1).whole(2, in(1, aWeight), in(2, scale)))
	add(wholeAt(two(second(second(newSequence("interleaved", "The buckets of updates 1 and 2 come by turns; neither is whole, and update 3 is.").
		frame(first, 1, 0, aWeight, aBias).frame(first, 2, 0, aWeight, aBias), 1), 2), 3).torn(1).torn(2).skipped(2, 3), 3, 4))
	add(newSequence("another is given up", "The frame that gives up is one of an update that has not begun.").frame(first, 1, 0, scale).frame(givenUp, 2, 1).frame(last, 1, 1).torn(1).skipped(1, 2))
	add(newSequence("another is given up at once", "Update 2 is given up within update 1.").frame(first, 1, 0, scale).frame(first|givenUp, 2, 0).frame(last, 1, 1).torn(1).torn(2).skipped(2))
	add(wholeAt(two(second(newSequence("joined within", "The reader has joined within update 5, which it skips.").frame(0, 5, 3, aWeight), 5), 6).skipped(0, 1), 6, 2))
	add(wholeAt(two(newSequence("joined before it was given up", "The reader has joined within update 5, which is given up.").frame(givenUp, 5, 3), 6).skipped(0), 6, 1))

	refusals(add)
	return all
}

// refusals adds sequences that end with a frame that is refused because of those before it.
func refusals(add func(*sequence)) {
	add(newSequence("refused within", "A frame with a flag that is not known tears the update.").frame(first, 1, 0, scale).frame(8, 1, 1).frame(last, 1, 1).torn(1).refused(1))
	add(newSequence("refused behind", "Update 1 is whole, and stays it.").frame(first|last, 1, 0, scale).frame(8, 2, 1).whole(1, in(0, scale)).refused(1))
	add(newSequence("refused while skipped", "A frame that is no frame of weights is refused, also where frames are skipped.").frame(0, 5, 3).frame(8, 5, 4).skipped(0).refused(1))
	add(newSequence("number 0 while skipped", "Updates count from 1, also those that are skipped.").frame(0, 0, 3).refused(0))
	add(newSequence("a number again", "The second update has the number of the first one.").frame(first|last, 2, 0, scale).frame(first|last, 2, 0, scale).known().whole(2, in(0, scale)).refused(1))
	add(newSequence("a number that falls", "The second update has a smaller number than the one that it tears.").frame(first, 2, 0, scale).frame(first|last, 1, 0, scale).known().torn(2).refused(1))
	add(newSequence("unfinished", "The last bucket leaves a tensor unfinished.").frame(first, 1, 0, piece(0, 0, 1024)).frame(last, 1, 1, piece(0, 1024, 1024)).torn(1).refused(1))
	add(newSequence("unfinished without tensors", "The last bucket is empty, and a tensor unfinished.").frame(first, 1, 0, piece(0, 0, 1024)).frame(last, 1, 1).torn(1).refused(1))
	add(newSequence("a tensor between pieces", "The second bucket begins with another tensor.").frame(first, 1, 0, piece(0, 0, 1024)).frame(0, 1, 1, scale, piece(1024, 1024, 3072)).torn(1).refused(1))
	add(newSequence("a missing piece", "The third piece comes behind the first.").frame(first, 1, 0, piece(0, 0, 1024)).frame(0, 1, 1, piece(0, 2048, 1024)).torn(1).refused(1))
	other := piece(0, 1024, 3072)
	other.DType = "I32"
	add(newSequence("pieces of two types", "The second bucket calls it I32.").frame(first, 1, 0, piece(0, 0, 1024)).frame(last, 1, 1, other).torn(1).refused(1))
	add(newSequence("a name twice", "The second bucket has a tensor of the first.").frame(first, 1, 0, aWeight, scale).frame(last, 1, 1, aBias, scale).torn(1).refused(1))
	add(newSequence("a piece of a whole tensor", "The tensor was whole.").frame(first, 1, 0, piece(0, 0, 4096)).frame(last, 1, 1, piece(0, 4096, 1)).torn(1).refused(1))
	small := draft{flags: first | last, number: 2, step: 20, at: 512, table: tableOf(aWeight, scale), known: true}
	add(newSequence("a known table that does not fit", "The table is that of the frame before, and lies where its last tensor does.").frame(first|last, 1, 0, aWeight, scale).draft(small).
		whole(1, in(0, aWeight), in(0, scale)).refused(1))
	small.at, small.tensors = 1024, new(uint32(1))
	add(newSequence("a known table of another number", "The frame says that the known table has one tensor.").frame(first|last, 1, 0, aWeight, scale).draft(small).
		whole(1, in(0, aWeight), in(0, scale)).refused(1))
}

// describedSequences are channels whose offer has data.
func describedSequences() (all []sequenceVector) {
	add := func(data string, s *sequence) {
		s.v.Data = data
		all = append(all, s.v)
	}
	const two = `{"tensors":[{"name":"a.weight","dtype":"BF16","shape":[4,8]},{"name":"scale","dtype":"F64","shape":[]}]}`
	const inPlace = `{"tensors":[{"name":"a.weight","dtype":"BF16","shape":[4,8]}],"in_place":true}`
	add(two, newSequence("as described", "The order is the publisher's.").frame(first, 1, 0, scale).frame(last, 1, 1, aWeight).whole(1, in(0, scale), in(1, aWeight)))
	add(two, newSequence("a tensor is missing", "The last frame leaves one out.").frame(first, 1, 0, scale).frame(last, 1, 1).torn(1).refused(1))
	add(two, newSequence("all are missing", "One frame without tensors.").frame(first|last, 1, 0).refused(0))
	add(two, newSequence("given up before all have come", "That is no whole update.").frame(first, 1, 0, scale).frame(givenUp, 1, 1).torn(1))
	add(two, newSequence("a tensor too many", "The metadata does not name it.").frame(first, 1, 0, scale).frame(0, 1, 1, aBias).torn(1).refused(1))
	other := aWeight
	other.DType = "F16"
	add(two, newSequence("another type", "The metadata says BF16.").frame(first|last, 1, 0, other, scaleAt(512)).refused(0))
	add(`{"tensors":[]}`, newSequence("none are described", "No update has tensors.").frame(first|last, 1, 0).frame(first|last, 2, 0, scale).whole(1).refused(1))
	add(inPlace, newSequence("in place, described", "One is given up.").frame(first|last, 1, 0, aWeight).frame(first|givenUp, 2, 0).whole(1, in(0, aWeight)).torn(2))
	add(inPlace, newSequence("in place without last", "The update would go on.").frame(first, 1, 0, aWeight).refused(0))
	add(inPlace, newSequence("in place without first", "The update would have begun before.").frame(last, 1, 1, aWeight).refused(0))
	return all
}

func goodMetadata() []metadataVector {
	return []metadataVector{
		{Name: "not known", Text: `{}`},
		{Name: "no tensors", Text: `{"tensors":[]}`, Tensors: &[]metadataTensor{}},
		{Name: "buckets", Text: `{"tensors":[{"name":"a.weight","dtype":"BF16","shape":[4,8]},{"name":"scale","dtype":"F64","shape":[]}],"in_place":false}`,
			Tensors: &[]metadataTensor{{"a.weight", "BF16", []uint64{4, 8}, nil}, {"scale", "F64", []uint64{}, nil}}},
		{Name: "in place", Text: `{"later":1,"in_place":true,"tensors":[{"name":"a","dtype":"U8","shape":[2],"of":{"shape":[4],"begin":[2],"later":[]},"at":-1}]}`,
			Tensors: &[]metadataTensor{{"a", "U8", []uint64{2}, &shardVector{[]uint64{4}, []uint64{2}}}}, InPlace: true},
	}
}

func refusedMetadata() []metadataVector {
	return []metadataVector{
		{Name: "no JSON", Text: `{`, Reason: "no JSON"},
		{Name: "a list", Text: `[]`, Reason: "no object"},
		{Name: "no list", Text: `{"tensors":null}`, Reason: "tensors is no list"},
		{Name: "a member twice", Text: `{"in_place":true,"in_place":true}`, Reason: "a member that comes twice"},
		{Name: "65 lists and objects", Text: deep(64, ""), Reason: "more than 64 lists and objects within one another"},
		{Name: "a number of 65 characters", Text: deep(1, strings.Repeat("1", 65)), Reason: "a number of more than 64 characters"},
		{Name: "NaN", Text: `{"later":NaN}`, Reason: "no JSON"},
		{Name: "in_place is a number", Text: `{"in_place":1}`, Reason: "in_place is neither true nor false"},
		{Name: "a name twice", Text: `{"tensors":[{"name":"a","dtype":"U8","shape":[2]},{"name":"a","dtype":"U8","shape":[2]}]}`, Reason: "a name that comes twice"},
		{Name: "unknown dtype", Text: `{"tensors":[{"name":"a","dtype":"torch.uint8","shape":[2]}]}`, Reason: "a type that is not known"},
		{Name: "half a byte", Text: `{"tensors":[{"name":"a","dtype":"F4","shape":[3]}]}`, Reason: "the shape has no whole number of bytes"},
		{Name: "no shape", Text: `{"tensors":[{"name":"a","dtype":"U8"}]}`, Reason: "no member shape"},
		{Name: "a slice beyond its whole", Text: `{"tensors":[{"name":"a","dtype":"U8","shape":[2],"of":{"shape":[4],"begin":[3]}}]}`, Reason: "the slice exceeds its whole"},
	}
}
