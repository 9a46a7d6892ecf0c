// Package safetensors reads and writes files in the format of that name, in which
// models are published: a header in JSON with name, type, shape and place of each
// tensor, and the tensors' bytes behind it.
//
//	m, err := safetensors.Open("model.safetensors")
//	defer m.Close()
//	buf, err := vmm.New(dev, m.Table.Size)
//	err = buf.Load(ctx, m.Segments(), vmm.TransferOptions{})
//
// The tensors of all files lie in one buffer, in the order of the files and of
// their bytes there, each aligned to [Align]. So kernels can use them in place,
// which the format itself does not promise. The [Table] says where they are; a
// consumer of the buffer needs it, as JSON.
//
// Files come from strangers. A header is refused ([ErrFormat]) unless every byte
// behind it belongs to exactly one tensor, of a known type and the size of its
// shape. A header with a name twice, an unknown field, or more than 100 MB is
// refused too. A header takes memory in proportion to its size.
package safetensors
