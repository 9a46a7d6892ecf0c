package kernels

// Answers is how many answers there are, and how many of them nobody uses.
func (k *Set) Answers() (all, free int) { return k.run.Answers() }
