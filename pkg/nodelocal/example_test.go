package nodelocal_test

import (
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
)

// A claim without a node: this node competes for it, loses its first try, and waits longer for the second.
func Example() {
	immediate := storagev1.VolumeBindingImmediate
	verdict, _ := nodelocal.Judge(nodelocal.Question{
		Node:             "worker-1",
		Class:            &storagev1.StorageClass{VolumeBindingMode: &immediate},
		ImmediateBinding: true,
	})
	race, err := nodelocal.NewRace(nodelocal.RaceConfig{
		Base: 20 * time.Second, Max: time.Minute, Random: func() float64 { return 0.5 },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Unix(0, 0)
	fmt.Println(verdict, race.Wait("uid-1", now))
	now = now.Add(10 * time.Second)
	fmt.Println("conflict", race.Again("uid-1", now))
	fmt.Println(nodelocal.ManagedBy("external-provisioner", "worker-1"))
	// Output:
	// Compete 10s
	// conflict 30s
	// external-provisioner-worker-1
}
