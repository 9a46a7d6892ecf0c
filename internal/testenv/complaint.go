package testenv

// A complaint is the panic by which Must and Got end a child.
type complaint struct{ error }

// Must ends a child with err, if there is one: see [Complaint].
func Must(err error) {
	if err != nil {
		panic(complaint{err})
	}
}

// Got returns v, or ends a child with the error of the call that should have returned it.
func Got[T any](v T, err error) T {
	Must(err)
	return v
}

// Complaint calls the main function of a child and returns its error, or the one that Must or Got
// ended it with.
func Complaint(main func() error) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case complaint:
			err = x.error
		default:
			panic(x)
		}
	}()
	return main()
}
