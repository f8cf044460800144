package driveraway

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

func waiting(n int) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for i := range n {
		name := "c" + strconv.Itoa(i)
		claims = append(claims, fixture.Claim(name).UID(name).Obj())
	}
	return claims
}

func TestNotices(t *testing.T) {
	t.Parallel()
	lost := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	again := lost.Add(time.Hour)
	var connected time.Time
	type look struct {
		since        time.Time
		after        time.Duration // since the loss
		waiting      int
		tell, beyond int
	}
	for name, looks := range map[string][]look{
		"a connected driver":            {{connected, 0, 3, 0, 0}},
		"an absence that is short yet":  {{lost, 24 * time.Second, 3, 0, 0}},
		"each claim once":               {{lost, 25 * time.Second, 3, 3, 0}, {lost, 30 * time.Second, 3, 0, 0}},
		"a claim that comes later":      {{lost, 25 * time.Second, 3, 3, 0}, {lost, 30 * time.Second, 5, 2, 0}},
		"as many as may have an event":  {{lost, time.Minute, 100, 100, 0}},
		"more than that":                {{lost, time.Minute, 250, 100, 250}, {lost, 2 * time.Minute, 300, 0, 0}},
		"more of them later":            {{lost, time.Minute, 90, 90, 0}, {lost, 2 * time.Minute, 120, 10, 120}, {lost, 3 * time.Minute, 130, 0, 0}},
		"the next absence tells again":  {{lost, time.Minute, 101, 100, 101}, {connected, 0, 101, 0, 0}, {again, time.Minute, 101, 100, 101}},
		"the next absence, seen late":   {{lost, time.Minute, 3, 3, 0}, {again, time.Minute, 3, 3, 0}},
		"a return before anybody knows": {{lost, time.Second, 3, 0, 0}, {connected, 0, 3, 0, 0}, {again, time.Second, 3, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n notices
			for i, l := range looks {
				tell, beyond := n.next(l.since.Add(l.after), l.since, After, waiting(l.waiting))
				if len(tell) != l.tell || beyond != l.beyond {
					t.Errorf("look %d: %d claims are told and %d are too many, want %d and %d", i, len(tell), beyond, l.tell, l.beyond)
				}
			}
		})
	}
}
