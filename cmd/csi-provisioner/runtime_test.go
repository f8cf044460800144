package main

import (
	"os"
	"path/filepath"
	"testing"
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
