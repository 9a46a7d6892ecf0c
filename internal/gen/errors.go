package main

import "strings"

// spelled are the words of result names that Go writes in capitals.
var spelled = map[string]string{
	"CUDA": "CUDA", "PTX": "PTX", "ECC": "ECC", "JIT": "JIT", "NVLINK": "NVLink", "RPC": "RPC",
	"MPS": "MPS", "CDP": "CDP", "NUMA": "NUMA", "PC": "PC", "GPU": "GPU",
}

// writeErrors declares one sentinel of package cu per CUresult.
func writeErrors(a *abi, w *writer) error {
	w.p("package cu\n\nimport \"github.com/gpufd/gpufd/cu/sys\"\n")
	w.p("// The driver's results as errors, for errors.Is. See [Error].\nconst (")
	for _, c := range a.Enums.m["cudaError_enum"] {
		if name, ok := strings.CutPrefix(c.Name, "CUDA_ERROR_"); ok {
			w.p("%s = Result(sys.%s)", sentinel(name), c.Name)
		}
	}
	w.p(")")
	return nil
}

func sentinel(name string) string {
	var b strings.Builder
	b.WriteString("Err")
	for _, word := range strings.Split(name, "_") {
		if s, ok := spelled[word]; ok {
			b.WriteString(s)
			continue
		}
		b.WriteString(word[:1] + strings.ToLower(word[1:]))
	}
	return b.String()
}
