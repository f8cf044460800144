package process

import (
	"regexp"
	"strings"
	"testing"
)

// The process lock is for the first process; the identity tells the processes of a pod apart with it and without.
func TestOneHolderHasTheProcessLock(t *testing.T) {
	t.Parallel()
	uid := randomHex() // so that no other process has the lock
	first, err := NewHolder("mock.csi.test", "csi-0", uid)
	if err != nil {
		t.Fatal(err)
	}
	second, err := NewHolder("mock.csi.test", "csi-0", uid)
	if err == nil || !strings.Contains(err.Error(), "another process of the pod may have it") {
		t.Errorf("the second process of the pod got the error %v, want that another has the lock", err)
	}
	other, err := NewHolder("other.csi.test", "csi-0", uid)
	if err != nil {
		t.Errorf("the sidecar of another driver in the pod: %v", err)
	}
	identities := map[string]bool{}
	for _, h := range []Holder{first, second, other} {
		identity := h.Identity()
		if pod, _, _ := strings.Cut(identity, "_"); pod != "csi-0" || h.Pod() != pod || !regexp.MustCompile(`^csi-0_[-0-9a-f]{16,}$`).MatchString(identity) {
			t.Errorf("identity %q, want <pod>_<random>", identity)
		}
		identities[identity] = true
	}
	if len(identities) != 3 {
		t.Errorf("identities %v, want one for each", identities)
	}
}
