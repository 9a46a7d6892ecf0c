package cu

// PendingCalls is how many functions of [Stream.Call] are kept.
func PendingCalls() int {
	hostFuncs.mu.Lock()
	defer hostFuncs.mu.Unlock()
	return len(hostFuncs.f)
}
