package sock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A server passes an open file to a client of the same user.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "example") // mode 0700
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := sock.Listen(filepath.Join(dir, "socket"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	var server sync.WaitGroup
	server.Go(func() { serve(ctx, l) })
	defer server.Wait()

	c, err := sock.Dial(ctx, l.Path())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	rec, err := c.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer rec.Close()
	buf := make([]byte, 5)
	if _, err := rec.Files[0].ReadAt(buf, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", rec.Data, buf)
	// Output: a file: hello
}

func serve(ctx context.Context, l *sock.Listener) {
	f, err := os.CreateTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.WriteString("hello"); err != nil {
		log.Fatal(err)
	}
	c, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := c.Send(ctx, []byte("a file"), f); err != nil {
		log.Fatal(err)
	}
	_ = c.WaitClose(ctx) // who sends last waits for the other
}
