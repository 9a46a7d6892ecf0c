package rival

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/program"
)

// A Handler answers a request with the numbers that came with it.
type Handler func(args []uint64) (Answer, error)

// Serve says that the rival is ready and answers requests until in ends. What a
// handler fails with is an answer, too.
func Serve(in io.Reader, out io.Writer, hello Answer, handlers map[string]Handler) error {
	enc := json.NewEncoder(out)
	hello.Ready = true
	if err := enc.Encode(hello); err != nil {
		return err
	}
	s := bufio.NewScanner(in)
	for s.Scan() {
		a, err := answer(s.Text(), handlers)
		if err != nil {
			a = Answer{Error: err.Error()}
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return s.Err()
}

// Refuse says why the rival cannot get ready, on one line.
func Refuse(out io.Writer, why error) error {
	return json.NewEncoder(out).Encode(Answer{Error: program.OneLine(why)})
}

func answer(request string, handlers map[string]Handler) (Answer, error) {
	words := strings.Fields(request)
	if len(words) == 0 || handlers[words[0]] == nil {
		return Answer{}, fmt.Errorf("no such request: %q", request)
	}
	var args []uint64
	for _, w := range words[1:] {
		n, err := strconv.ParseUint(w, 10, 64)
		if err != nil {
			return Answer{}, fmt.Errorf("request %q: %w", request, err)
		}
		args = append(args, n)
	}
	return handlers[words[0]](args)
}
