package cluster

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// A volume of ours that is bound costs at most 2,200 bytes: its claim, its PersistentVolume, and what the caches need
// for both.
func TestServedVolumesAreSmall(t *testing.T) { //nolint:paralleltest // it measures the heap
	const count, limit = 5_000, 2_200 // bytes a volume
	var before, after runtime.MemStats
	trim := newTrimmer(testDriver, "")
	claims := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{indexUID: claimUIDs, indexSource: claimSources})
	pvs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	runtime.GC()
	runtime.ReadMemStats(&before)
	for n := range count {
		uid := types.UID(fmt.Sprintf("01234567-89ab-cdef-0123-%012d", n))
		claim, pv := fullClaim(testDriver), fullPV(testDriver)
		claim.Name, claim.UID, claim.Spec.VolumeName = fmt.Sprintf("data-database-%d", n), uid, "pvc-"+string(uid)
		claim.Spec.DataSource, claim.Spec.DataSourceRef, claim.DeletionTimestamp, claim.Finalizers = nil, nil, nil, nil
		pv.Name, pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "pvc-"+string(uid), claim.Name, uid
		pv.UID = types.UID(strings.Replace(string(uid), "0", "f", 1))
		_ = claims.Add(mustTrim(t, trim.claim, overTheWire(t, claim, &corev1.PersistentVolumeClaim{})))
		_ = pvs.Add(mustTrim(t, trim.pv, overTheWire(t, pv, &corev1.PersistentVolume{})))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / count
	if each > limit {
		t.Errorf("%d bytes a volume, want at most %d", each, limit)
	}
	runtime.KeepAlive(claims)
	runtime.KeepAlive(pvs)
	runtime.KeepAlive(trim)
}

// overTheWire returns a copy that shares no string with the original or with another copy.
func overTheWire[T interface{ Unmarshal(data []byte) error }](t *testing.T, from interface{ Marshal() ([]byte, error) }, to T) T {
	t.Helper()
	data, err := from.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return to
}
