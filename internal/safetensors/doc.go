// Package safetensors reads and writes the file format of that name, in which
// models are published: a header in JSON with name, type, shape and place of each
// tensor, and their bytes behind it.
//
//	m, err := safetensors.Open("model.safetensors")
//	defer m.Close()
//	buf, err := vmm.New(dev, m.Table.Size)
//	err = buf.Load(ctx, m.Segments(), vmm.TransferOptions{})
//
// The tensors of all files lie in one buffer, in the order of the files and of their
// bytes in those, each aligned to [Align]. So kernels can use them there, which the
// format itself does not promise. The [Table] says where they are; as JSON it is what
// a consumer of the buffer has to be told.
//
// Files come from strangers. A header is refused ([ErrFormat]) unless every byte
// behind it belongs to exactly one tensor, of a known type and the size that its shape
// has; so is one with a name twice, an unknown field, or more than 100 MB. A header takes
// memory in proportion to its size.
package safetensors
