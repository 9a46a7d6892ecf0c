package launch

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/kernels"
)

// A kernel is a function with what is known of its parameters.
type kernel struct {
	fn     *cu.Function
	name   string
	does   string  // what a builtin kernel does
	params []param // nil if nobody knows
}

// A param is a parameter of a kernel. Only those of builtin kernels have a name. Those of PTX have a
// type, unless they are structs.
type param struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type,omitempty"`
	Size uint64 `json:"size"`

	ptx bool // Type is PTX's
}

// typeSize is the size of each type of a builtin kernel's parameters.
var typeSize = map[string]uint64{"u8": 1, "u32": 4, "u64": 8, "f32": 4, "ptr": pointerSize}

// load loads the module.
func (l *launcher) load() (err error) {
	switch {
	case l.builtin != "":
		l.code, err = l.ctx.LoadModule([]byte(findBuiltin(l.builtin).PTX))
	case l.ptx != "":
		var text []byte
		if text, err = readFile(l.ptx); err == nil {
			l.code, err = l.ctx.LoadModule(text)
		}
	default:
		l.code, err = l.ctx.LoadModuleFile(l.module)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.source(), err)
	}
	l.app.Say("loaded", app.Fields{"module": l.source()}, "Loaded %s", l.source())
	return nil
}

// maxModule bounds the size of a module's file.
const maxModule = 1 << 30

// readFile returns the contents of a file.
func readFile(name string) ([]byte, error) {
	f, size, err := cli.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxModule {
		return nil, fmt.Errorf("%s has %s, which is too large for a module", name, cli.Human(size))
	}
	return io.ReadAll(io.LimitReader(f, int64(size)))
}

// source returns the flag that names the module, as it was given, or nothing.
func (l *launcher) source() string {
	switch {
	case l.builtin != "":
		return "--builtin " + l.builtin
	case l.ptx != "":
		return "--ptx " + l.ptx
	case l.module != "":
		return "--module " + l.module
	}
	return ""
}

// find returns the kernel to launch.
func (l *launcher) find() (*kernel, error) {
	fn, err := l.code.Function(l.kernel)
	if !errors.Is(err, cu.ErrNotFound) {
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", l.kernel, err)
		}
		return l.describe(fn)
	}
	names, listErr := l.names()
	switch {
	case listErr != nil:
		return nil, fmt.Errorf("%s has no kernel %s: %w", l.source(), l.kernel, err)
	case len(names) == 0:
		return nil, fmt.Errorf("%s has no kernel %s, nor any other", l.source(), l.kernel)
	}
	return nil, fmt.Errorf("%s has no kernel %s; it has %s", l.source(), l.kernel, app.Listed(names, "and"))
}

// Regular expressions for kernels in PTX, and for comments.
var (
	entry   = regexp.MustCompile(`\.entry\s+([\w$%]+)`)
	comment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
)

// names lists the kernels. Drivers before CUDA 12.4 cannot do that, so it then searches
// the text of PTX.
func (l *launcher) names() (names []string, err error) {
	functions, err := l.code.Functions()
	switch {
	case err == nil:
		for _, f := range functions {
			names = append(names, f.Name())
		}
	case !errors.Is(err, cu.ErrSymbolMissing):
		return nil, err
	case l.builtin != "":
		for _, k := range findBuiltin(l.builtin).Kernels {
			names = append(names, k.Name)
		}
	default:
		text, fileErr := readFile(l.ptx + l.module) // of which one is empty
		if fileErr != nil || strings.Contains(string(text), "\x00") {
			return nil, errors.Join(err, fileErr)
		}
		for _, m := range entry.FindAllStringSubmatch(comment.ReplaceAllString(string(text), ""), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// describe finds out what the kernel takes.
func (l *launcher) describe(fn *cu.Function) (*kernel, error) {
	k := &kernel{fn: fn, name: fn.Name()}
	if l.builtin != "" {
		k.describeBuiltin(l.builtin)
		return k, nil
	}
	params, err := fn.Params()
	if errors.Is(err, cu.ErrSymbolMissing) {
		return k, nil
	}
	k.params = []param{}
	types := fn.ParamTypes()
	for i, p := range params {
		k.params = append(k.params, param{Size: p.Size, ptx: true})
		if i < len(types) {
			k.params[i].Type = types[i]
		}
	}
	return k, err
}

func (k *kernel) describeBuiltin(module string) {
	for _, b := range findBuiltin(module).Kernels {
		if b.Name != k.name {
			continue
		}
		k.does = b.Does
		for _, p := range b.Params {
			k.params = append(k.params, param{Name: p.Name, Type: p.Type, Size: typeSize[p.Type]})
		}
	}
}

// fits checks that the arguments fit the parameters, as far as those are known. It is a failure
// if they do not, as for a kernel that is not there: only the module tells.
func (k *kernel) fits(args []*argument) error {
	switch {
	case k.params == nil:
		return nil
	case len(args) != len(k.params):
		return fmt.Errorf("kernel %s takes %s and was given %d", k.name, k.takes(), len(args))
	}
	for i, a := range args {
		if p := k.params[i]; a.bytes() != p.Size {
			return fmt.Errorf("argument %d, %q, has %s where kernel %s takes %d: it takes %s",
				i+1, a.text, cli.Count(a.bytes(), "byte"), k.name, p.Size, k.takes())
		}
		if !k.params[i].suits(a) {
			return fmt.Errorf("argument %d, %q, is no %s: kernel %s takes %s%s", i+1, a.text, k.params[i].Type, k.name, k.takes(), k.params[i].hint(a))
		}
	}
	return nil
}

// suits reports whether an argument of the right size is a number of the right
// kind, as far as that is known. An address may be given as a number.
func (p param) suits(a *argument) bool {
	float := p.Type == "f32" || p.Type == "f64"
	switch a.value.(type) {
	case nil:
		return p.Type == "ptr" || p.Type == "" || p.ptx && !float
	case half, bfloat:
		return p.ptx || float || p.Type == "" // PTX has bits, or whole numbers, of 16 bits
	case float32, float64:
		return float || p.Type == "" || p.ptx && strings.HasPrefix(p.Type, "b")
	}
	return !float
}

// hint says how to give a float by its bits, if a whole number was given for one.
func (p param) hint(a *argument) string {
	_, number, _ := strings.Cut(a.text, ":")
	if p.Type != "f32" && p.Type != "f64" || a.value == nil {
		return ""
	}
	return fmt.Sprintf("; if %s are the bits of one, give %s:bits:%s", number, p.Type, number)
}

// takes describes the kernel's parameters.
func (k *kernel) takes() string {
	switch {
	case k.params == nil:
		return "arguments that this driver does not know (CUDA 12.4 does)"
	case len(k.params) == 0:
		return "no arguments"
	}
	named, sizes := make([]string, len(k.params)), make([]string, len(k.params))
	for i, p := range k.params {
		named[i], sizes[i] = p.Type+" "+p.Name, strconv.FormatUint(p.Size, 10)
	}
	if k.params[0].Name != "" {
		return fmt.Sprintf("%s (%s)", cli.Count(len(k.params), "argument"), strings.Join(named, ", "))
	}
	return fmt.Sprintf("%s (of %s bytes)", cli.Count(len(k.params), "argument"), app.Listed(sizes, "and"))
}

// listBuiltins prints all kernels that come with the program, or the one of --kernel.
func (l *launcher) listBuiltins() error {
	found := false
	for _, b := range kernels.Builtins() {
		if l.kernel != "" && !slices.ContainsFunc(b.Kernels, func(k kernels.Kernel) bool { return k.Name == l.kernel }) {
			continue
		}
		l.builtin, found = b.Name, true
		if err := l.app.Timed("load", l.load); err != nil {
			return err
		}
		l.app.Print("", nil, "%s:", l.source())
		if err := l.listKernels(); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("no kernel %s comes with this program; there are %s", l.kernel, app.Listed(builtinKernels(), "and"))
	}
	return nil
}

// listKernels prints all kernels, or the one of --kernel.
func (l *launcher) listKernels() error {
	if l.kernel != "" {
		k, err := l.find()
		if err != nil {
			return err
		}
		return l.show(k)
	}
	names, err := l.names()
	if err != nil {
		return fmt.Errorf("listing the kernels of %s: %w; --kernel shows one", l.source(), err)
	}
	for _, name := range names {
		fn, err := l.code.Function(name)
		if err != nil {
			return fmt.Errorf("kernel %s: %w", name, err)
		}
		k, err := l.describe(fn)
		if err != nil {
			return err
		}
		if err := l.show(k); err != nil {
			return err
		}
	}
	return nil
}

// show prints what is known of a kernel.
func (l *launcher) show(k *kernel) error {
	a, err := k.fn.Attributes()
	if err != nil {
		return err
	}
	fields := app.Fields{"kernel": k.name, "params": k.params, "registers": a.Registers, "shared": a.Shared,
		"local": a.Local, "const": a.Const, "max_threads": a.MaxThreadsPerBlock, "max_dynamic_shared": a.MaxDynamicShared}
	l.app.Print("kernel", fields, "%s: takes %s; %d registers, %d bytes of shared memory, %d of local; at most %d threads in a block",
		k.name, k.takes(), a.Registers, a.Shared, a.Local, a.MaxThreadsPerBlock)
	if k.does != "" {
		l.app.Print("", nil, "  %s", k.does)
	}
	return nil
}
