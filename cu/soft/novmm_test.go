package soft

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func init() { children["no vmm"] = childNoVMM }

// childNoVMM makes every call of virtual memory management, with zeros, before cuInit and
// after, and says what the device has.
func childNoVMM() {
	all := func() (results []string) {
		for _, symbol := range vmmFunctions {
			method := reflect.ValueOf(caller).MethodByName("C" + symbol[1:])
			zeros := make([]reflect.Value, method.Type().NumIn())
			for i := range zeros {
				zeros[i] = reflect.Zero(method.Type().In(i))
			}
			results = append(results, fmt.Sprint(method.Call(zeros)[0]))
		}
		return results
	}
	before := all()
	must(caller.CuInit(0))
	fmt.Println(strings.Join(before, " "))
	fmt.Println(strings.Join(all(), " "))
	for _, a := range []sys.CUdevice_attribute{
		sys.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
		sys.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
	} {
		v := new(int32)
		must(caller.CuDeviceGetAttribute(v, a, 0))
		fmt.Print(*v, " ")
	}
}

// GPUFD_SOFT_VMM=0 is a device without virtual memory management, and with legacy IPC.
func TestNoVMM(t *testing.T) {
	for _, symbol := range vmmFunctions {
		require.Contains(t, calls(), symbol)
	}
	times := func(word string) string { return strings.TrimSpace(strings.Repeat(word+" ", len(vmmFunctions))) }
	require.Equal(t, strings.Join([]string{
		times("CUDA_ERROR_NOT_INITIALIZED"), times("CUDA_ERROR_NOT_SUPPORTED"), "0 0 0 1",
	}, "\n"), output(t, "no vmm", envVMM+"=0"))
	require.Equal(t, "1 1 1 1", strings.Split(output(t, "no vmm"), "\n")[2])
}
