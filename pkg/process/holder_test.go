package process

import "testing"

// holderWithoutLock is the holder of a process whose pod's lock another process has.
func holderWithoutLock(pod string) Holder { return Holder{pod: pod, random: randomHex()} }

// Only the holder of the process lock replaces others, and only those that held the same lock.
func TestReplaces(t *testing.T) {
	t.Parallel()
	h := Holder{pod: "csi-0", place: "1111", random: "a"}
	for identity, want := range map[string]bool{
		"csi-0_1111-b": true,
		h.Identity():   false,
		"csi-0_2222-b": false, // another boot, network namespace, driver or pod of the name
		"csi-0_b":      false, // it had no lock: it may be alive
		"csi-0":        false, // of an older version
		"csi-1_1111-b": false,
		"":             false,
	} {
		if got := h.Replaces(identity); got != want {
			t.Errorf("%s replaces %q: %v, want %v", h.Identity(), identity, got, want)
		}
		if without := holderWithoutLock("csi-0"); without.Replaces(identity) {
			t.Errorf("%s, without the lock, replaces %q", without.Identity(), identity)
		}
	}
	if (Holder{}).Replaces("_-") {
		t.Error("nobody replaces anybody")
	}
}
