package driver

import (
	"strings"
	"testing"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		address string
		wantOK  bool
	}{
		"an absolute path":               {"/run/csi/socket", true},
		"unix and an absolute path":      {"unix:///run/csi/socket", true},
		"a path as long as can be":       {"/" + strings.Repeat("a", 106), true},
		"a path that is one byte longer": {"/" + strings.Repeat("a", 107), false},
		"nothing":                        {"", false},
		"a relative path":                {"csi.sock", false},
		"unix without slashes":           {"unix:/run/csi/socket", false},
		"unix and a relative path":       {"unix://csi.sock", false},
		"unix and nothing":               {"unix://", false},
		"tcp":                            {"tcp://h:1", false},
		"a zero byte":                    {"/run/\x00", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := CheckAddress(tc.address)
			if (err == nil) != tc.wantOK {
				t.Fatalf("CheckAddress(%q) = %v", tc.address, err)
			}
			if !tc.wantOK && len(tc.address) < 100 {
				for _, form := range []string{"/run/csi/socket", "unix:///run/csi/socket"} {
					if !strings.Contains(err.Error(), form) {
						t.Errorf("error %q does not name the form %s", err, form)
					}
				}
			}
			if _, err := Connect(quiet(t), Config{Address: tc.address}); err == nil {
				t.Error("Connect accepted a Config without a timeout")
			}
		})
	}
}
