// Lesson 8: your own test without a GPU.
//
// This program, one that you might write, keeps a table in device memory. See
// main_test.go, which runs on any machine, or on libcuda (GPUFD_DRIVER=cuda).
//
// Prints:
//
//	row 3: [30 31 32 33]
package main

import (
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/vmm"
)

func main() {
	lesson.Run(func(dev *cu.Device, ctx *cu.Context) (err error) {
		t, err := newTable(dev, ctx, 10)
		if err != nil {
			return err
		}
		defer lesson.Close(&err, t)
		if err := t.set(3, row{30, 31, 32, 33}); err != nil {
			return err
		}
		r, err := t.get(3)
		fmt.Println("row 3:", r)
		return err
	})
}

type row [4]uint32

const rowSize = 16

// A table is rows in device memory that can be shared. It works on a device of
// either driver.
type table struct {
	*vmm.Buffer
	ctx  *cu.Context
	rows int
}

func newTable(dev *cu.Device, ctx *cu.Context, rows int) (*table, error) {
	buf, err := vmm.New(dev, uint64(rows)*rowSize)
	if err != nil {
		return nil, err
	}
	return &table{buf, ctx, rows}, nil
}

// at returns the address of a row.
func (t *table) at(i int) (cu.DevicePtr, error) {
	if i < 0 || i >= t.rows {
		return 0, fmt.Errorf("row %d of a table of %d", i, t.rows)
	}
	return t.Ptr().Add(uint64(i) * rowSize), nil
}

func (t *table) set(i int, r row) error {
	p, err := t.at(i)
	if err != nil {
		return err
	}
	return cu.CopyToDevice(t.ctx, p, []row{r})
}

func (t *table) get(i int) (row, error) {
	p, err := t.at(i)
	if err != nil {
		return row{}, err
	}
	var r [1]row
	err = cu.CopyToHost(t.ctx, r[:], p)
	return r[0], err
}
