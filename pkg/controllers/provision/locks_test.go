package provision

import (
	"testing"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// A lock is held for all its names, and is given back for all of them.
func TestVolumeLocks(t *testing.T) {
	t.Parallel()
	var l volumeLocks
	release, ok := l.try("a", "b")
	if !ok {
		t.Fatal("nobody holds it")
	}
	for _, names := range [][]string{{"a"}, {"b"}, {"c", "b"}} {
		if _, ok := l.try(names...); ok {
			t.Errorf("%v was given twice", names)
		}
	}
	if releaseC, ok := l.try("c"); !ok {
		t.Error("a lock that was not given is held")
	} else {
		releaseC()
	}
	release()
	for _, name := range []string{"a", "b"} {
		if _, ok := l.try(name); !ok {
			t.Errorf("%s is still held", name)
		}
	}
}

// The deletion of a PersistentVolume excludes creates under its name and for its claim, whichever names the flags make.
func TestLocksOfClaimsAndPVs(t *testing.T) {
	t.Parallel()
	settings := Settings{VolumeNamePrefix: "pvc", VolumeNameUUIDLength: 3}
	pv := fixture.PV("pvc-111").BoundTo(fixture.Claim("c").UID("2222").Obj()).Obj()
	for uid, excluded := range map[string]bool{"1112": true, "2221": true, "3333": false} {
		c := &Controller{cfg: Config{Settings: settings}}
		release, ok := c.lockClaim(fixture.Claim("c").UID(uid).Obj().UID)
		if !ok {
			t.Fatal("nobody holds it")
		}
		releasePV, ok := c.lockPV(pv)
		if ok == excluded {
			t.Errorf("claim %s: the PersistentVolume got the lock %v, want %v", uid, ok, !excluded)
		}
		if ok {
			releasePV()
		}
		release()
		if _, ok := c.lockPV(pv); !ok {
			t.Errorf("claim %s: its lock was given back", uid)
		}
	}
}
