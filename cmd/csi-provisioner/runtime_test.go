package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"k8s.io/klog/v2"
)

func TestMemoryLimitOfTheContainer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file, text string
		want       int64
	}{
		"version 2":                   {"memory.max", "134217728\n", 128 << 20},
		"version 2 without a limit":   {"memory.max", "max\n", 0},
		"version 1":                   {"memory/memory.limit_in_bytes", "67108864\n", 64 << 20},
		"version 1 without a limit":   {"memory/memory.limit_in_bytes", "9223372036854771712\n", 0},
		"something else in the file":  {"memory.max", "", 0},
		"no cgroups, or another name": {"memory.high", "134217728\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path := filepath.Join(root, tc.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := readMemoryLimit(root); got != tc.want {
				t.Errorf("limit %d, want %d", got, tc.want)
			}
		})
	}
}

// The collector follows the container's memory limit and our own percentage, unless the environment says otherwise.
func TestMemoryLimitOfTheHeap(t *testing.T) { //nolint:paralleltest // it changes the process
	for name, tc := range map[string]struct {
		env       environment
		limit     int64
		gcPercent int
	}{
		"a limit of the container":          {environment{containerMemory: 100 << 20}, 90 << 20, gcPercent},
		"none":                              {environment{}, math.MaxInt64, gcPercent},
		"a limit, and one of GOMEMLIMIT":    {environment{containerMemory: 100 << 20, memLimit: "50MiB"}, math.MaxInt64, gcPercent},
		"a percentage of GOGC and no limit": {environment{gc: "100"}, math.MaxInt64, 33},
	} {
		oldLimit, oldPercent := debug.SetMemoryLimit(math.MaxInt64), debug.SetGCPercent(33)
		setUpMemory(klog.Background(), tc.env)
		if gotLimit, gotPercent := debug.SetMemoryLimit(oldLimit), debug.SetGCPercent(oldPercent); gotLimit != tc.limit || gotPercent != tc.gcPercent {
			t.Errorf("%s: limit %d at %d %%, want %d at %d %%", name, gotLimit, gotPercent, tc.limit, tc.gcPercent)
		}
	}
}
