package main

import "strings"

// spelled are words of result names that Go writes in capitals.
var spelled = map[string]string{
	"CUDA": "CUDA", "PTX": "PTX", "ECC": "ECC", "JIT": "JIT", "NVLINK": "NVLink", "RPC": "RPC",
	"MPS": "MPS", "CDP": "CDP", "NUMA": "NUMA", "PC": "PC", "GPU": "GPU", "PCI": "PCI", "ID": "ID",
	"IPC": "IPC", "DMA": "DMA", "RDMA": "RDMA", "VMM": "VMM", "TCC": "TCC", "CIG": "CIG", "KMT": "KMT", "D3D12": "D3D12",
	"TEXTURE1D": "Texture1D", "TEXTURE2D": "Texture2D", "TEXTURE3D": "Texture3D", "TEXTURECUBEMAP": "TextureCubemap",
	"SURFACE1D": "Surface1D", "SURFACE2D": "Surface2D", "SURFACE3D": "Surface3D", "SURFACECUBEMAP": "SurfaceCubemap",
	"TEX2D": "Tex2D",
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

func sentinel(name string) string { return "Err" + camel(name) }

// camel turns A_C_NAME into Go's spelling.
func camel(name string) string {
	var b strings.Builder
	for _, word := range strings.Split(name, "_") {
		if s, ok := spelled[word]; ok {
			b.WriteString(s)
			continue
		}
		b.WriteString(word[:1] + strings.ToLower(word[1:]))
	}
	return b.String()
}

// writeAttributes gives the device attributes their Go names.
func writeAttributes(a *abi, w *writer) error {
	const prefix = "CU_DEVICE_ATTRIBUTE_"
	w.p("package cu\n\nimport \"github.com/gpufd/gpufd/cu/sys\"\n")
	w.p("// An Attribute names a property of a device, for [Device.Attribute].\ntype Attribute sys.CUdevice_attribute\n")
	w.p("// String gives the attribute's name in C.\nfunc (a Attribute) String() string { return sys.CUdevice_attribute(a).String() }\n")
	w.p("// The attributes of a device, as CUdevice_attribute describes them.\nconst (")
	for _, c := range a.Enums.m["CUdevice_attribute_enum"] {
		if name := strings.TrimPrefix(c.Name, prefix); name != "MAX" {
			w.p("Attribute%s = Attribute(sys.%s)", camel(name), c.Name)
		}
	}
	w.p(")\n")
	w.p("// attributes are all of them by their names in C, less %s. Some have two.\nvar attributes = map[string]Attribute{", prefix)
	for _, c := range a.Enums.m["CUdevice_attribute_enum"] {
		if name := strings.TrimPrefix(c.Name, prefix); name != "MAX" {
			w.p("%q: Attribute%s,", name, camel(name))
		}
	}
	w.p("}")
	return nil
}
