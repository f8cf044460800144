package nodelocal

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	immediate, delayed := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	allowed := []corev1.TopologySelectorTerm{{}}
	outside := errors.New("outside of allowedTopologies")
	for name, tc := range map[string]struct {
		q       Question
		want    Verdict
		wantErr error
	}{
		"given to this node":                     {q: Question{SelectedNode: "n1", Class: &storagev1.StorageClass{VolumeBindingMode: &delayed}}, want: Owned},
		"given to this node, class unknown":      {q: Question{SelectedNode: "n1"}, want: Owned},
		"given to this node, immediate off":      {q: Question{SelectedNode: "n1", Class: &storagev1.StorageClass{VolumeBindingMode: &immediate}}, want: Owned},
		"given to this node, which is outside":   {q: Question{SelectedNode: "n1", ImmediateBinding: true, Class: &storagev1.StorageClass{AllowedTopologies: allowed}, Reachable: func() error { return outside }}, want: Owned},
		"given to another node":                  {q: Question{SelectedNode: "n2", ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate}}, want: NotOurs},
		"delayed binding waits for a node":       {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &delayed}}, want: NotOurs},
		"an unset mode is not immediate":         {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{}}, want: NotOurs},
		"immediate, but switched off":            {q: Question{Class: &storagev1.StorageClass{VolumeBindingMode: &immediate}}, want: NotOurs},
		"R7: no class":                           {q: Question{ImmediateBinding: true}, want: NotOurs},
		"immediate":                              {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate}}, want: Compete},
		"immediate, nobody asks for the place":   {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate}, Reachable: func() error { return outside }}, want: Compete},
		"immediate, inside":                      {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate, AllowedTopologies: allowed}, Reachable: func() error { return nil }}, want: Compete},
		"immediate, outside":                     {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate, AllowedTopologies: allowed}, Reachable: func() error { return outside }}, want: NotOurs, wantErr: outside},
		"immediate, topology is not supported":   {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &immediate, AllowedTopologies: allowed}}, want: Compete},
		"delayed binding, outside, is not asked": {q: Question{ImmediateBinding: true, Class: &storagev1.StorageClass{VolumeBindingMode: &delayed, AllowedTopologies: allowed}, Reachable: func() error { return outside }}, want: NotOurs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.q.Node = "n1"
			got, err := Judge(tc.q)
			if got != tc.want || !errors.Is(err, tc.wantErr) {
				t.Errorf("Judge = %s, %v, want %s, %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// The contract's table: base 20 s, max 60 s.
func TestDelay(t *testing.T) {
	t.Parallel()
	const almostOne = 1 - 1e-9
	for name, tc := range map[string]struct {
		base, limit time.Duration
		tries       int
		random      float64
		want        time.Duration
	}{
		"first, at most":                  {20 * time.Second, time.Minute, 0, 0, 20 * time.Second},
		"first, in the middle":            {20 * time.Second, time.Minute, 0, 0.5, 10 * time.Second},
		"second, at most":                 {20 * time.Second, time.Minute, 1, 0, 40 * time.Second},
		"second, in the middle":           {20 * time.Second, time.Minute, 1, 0.5, 30 * time.Second},
		"third, at most":                  {20 * time.Second, time.Minute, 2, 0, time.Minute},
		"fourth":                          {20 * time.Second, time.Minute, 3, 0.25, 55 * time.Second},
		"very late":                       {20 * time.Second, time.Minute, math.MaxInt32, 0, time.Minute},
		"no limit to speak of":            {20 * time.Second, math.MaxInt64, 80, 0, math.MaxInt64},
		"max below base, at most":         {time.Minute, 20 * time.Second, 5, 0, 20 * time.Second},
		"max below base, two thirds zero": {time.Minute, 20 * time.Second, 5, 0.34, 0},
		"no base":                         {0, time.Minute, 5, 0.5, 0},
		"no max":                          {20 * time.Second, 0, 5, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Delay(tc.base, tc.limit, tc.tries, tc.random); got != tc.want {
				t.Errorf("Delay = %s, want %s", got, tc.want)
			}
		})
	}
	for tries, floor := range []time.Duration{0, 20 * time.Second, 40 * time.Second, 40 * time.Second} {
		if got := Delay(20*time.Second, time.Minute, tries, almostOne); got <= floor || got > floor+time.Second {
			t.Errorf("try %d: least delay %s, want just above %s", tries, got, floor)
		}
	}
}

func TestRace(t *testing.T) {
	t.Parallel()
	random := 0.0
	race, err := NewRace(RaceConfig{Base: 20 * time.Second, Max: time.Minute, Random: func() float64 { return random }})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	check := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s: wait %s, want %s", what, got, want)
		}
	}
	check("first", race.Wait("a", now), 20*time.Second)
	random = 0.5
	check("asked again, it is not drawn again", race.Wait("a", now.Add(5*time.Second)), 15*time.Second)
	check("another claim has its own wait", race.Wait("b", now), 10*time.Second)
	now = now.Add(20 * time.Second)
	check("its time has come", race.Wait("a", now), 0)
	check("and still is, a minute later", race.Wait("a", now.Add(time.Minute)), 0)
	check("after a conflict", race.Again("a", now), 30*time.Second)
	check("after another", race.Again("a", now), 50*time.Second)
	check("after a third it is no longer", race.Again("a", now), 50*time.Second)
	check("and it is what Wait says", race.Wait("a", now.Add(time.Second)), 49*time.Second)
	race.Forget("a")
	check("forgotten, it begins anew", race.Wait("a", now), 10*time.Second)
	check("Again is a first wait for a claim that is not in the race", race.Again("c", now), 10*time.Second)
	if race.Len() != 3 {
		t.Errorf("%d claims in the race, want 3", race.Len())
	}
	for _, uid := range []types.UID{"a", "b", "c"} {
		race.Forget(uid)
	}
	if race.Len() != 0 {
		t.Errorf("%d claims in the race, want none", race.Len())
	}
}

func TestNewRaceChecks(t *testing.T) {
	t.Parallel()
	random := func() float64 { return 0 }
	for name, cfg := range map[string]RaceConfig{
		"no source of random numbers": {Base: 1, Max: 1},
		"base below zero":             {Base: -1, Max: 1, Random: random},
		"max below zero":              {Base: 1, Max: -1, Random: random},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := NewRace(cfg); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	here, there, coarse := place("zone", "a", "host", "h1"), place("zone", "b", "host", "h2"), place("zone", "a")
	for name, tc := range map[string]struct {
		requirement *csi.TopologyRequirement
		local       *csi.Topology
		want        []*csi.Topology
	}{
		"no requirement is one question without topology": {nil, here, []*csi.Topology{nil}},
		"strict":                           {&csi.TopologyRequirement{Requisite: []*csi.Topology{here}}, here, []*csi.Topology{here}},
		"only what holds here":             {&csi.TopologyRequirement{Requisite: []*csi.Topology{coarse, here, there}}, here, []*csi.Topology{coarse, here}},
		"all of it, when here is unknown":  {&csi.TopologyRequirement{Requisite: []*csi.Topology{here, there}}, nil, []*csi.Topology{here, there}},
		"nothing holds here":               {&csi.TopologyRequirement{Requisite: []*csi.Topology{there}}, here, nil},
		"finer than what is known of here": {&csi.TopologyRequirement{Requisite: []*csi.Topology{here}}, coarse, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Probes(tc.requirement, tc.local)
			if len(got) != len(tc.want) {
				t.Fatalf("%d probes, want %d", len(got), len(tc.want))
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("probe %d is %v, want %v", i, got[i], tc.want[i])
				}
			}
		})
	}
}

func place(pairs ...string) *csi.Topology {
	t := &csi.Topology{Segments: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		t.Segments[pairs[i]] = pairs[i+1]
	}
	return t
}

func TestEnough(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request int64
		answer  *csi.GetCapacityResponse
		want    bool
	}{
		"more than enough":            {10, &csi.GetCapacityResponse{AvailableCapacity: 11}, true},
		"just enough":                 {10, &csi.GetCapacityResponse{AvailableCapacity: 10}, true},
		"too little":                  {10, &csi.GetCapacityResponse{AvailableCapacity: 9}, false},
		"no answer":                   {10, nil, false},
		"nothing is asked for":        {0, &csi.GetCapacityResponse{}, true},
		"nothing is asked for at all": {0, nil, true},
		"one volume may be as large":  {10, &csi.GetCapacityResponse{AvailableCapacity: 90, MaximumVolumeSize: wrapperspb.Int64(10)}, true},
		"no volume may be as large":   {10, &csi.GetCapacityResponse{AvailableCapacity: 90, MaximumVolumeSize: wrapperspb.Int64(9)}, false},
		"no volume may have any size": {10, &csi.GetCapacityResponse{AvailableCapacity: 90, MaximumVolumeSize: wrapperspb.Int64(0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Enough(tc.request, tc.answer); got != tc.want {
				t.Errorf("Enough = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	info := &csi.NodeGetInfoResponse{NodeId: "id-1", AccessibleTopology: place("zone", "a", "host", "h1")}
	l := NewLocal("csi.example.com", "n1", info)
	info.AccessibleTopology.Segments["zone"] = "changed"
	wantNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a", "host": "h1"}}}
	wantCSINode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "csi.example.com", NodeID: "id-1", TopologyKeys: []string{"host", "zone"}},
	}}}
	if diff := cmp.Diff([]any{wantNode, wantCSINode, "n1"}, []any{l.Node(), l.CSINode(), l.Name()}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := NewLocal("csi.example.com", "n1", &csi.NodeGetInfoResponse{NodeId: "id-1"})
	if none.Topology() != nil || none.Node().Labels != nil || none.CSINode().Spec.Drivers[0].TopologyKeys != nil {
		t.Errorf("without topology: %v, %v, %v", none.Topology(), none.Node(), none.CSINode())
	}
}

// N8: what makes deletion a guess is said at the start.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		topology  *csi.Topology
		supported bool
		want      string
	}{
		"all is well":                  {place("zone", "a"), true, ""},
		"topology is not supported":    {place("zone", "a"), false, "not supported"},
		"the driver says nothing":      {nil, true, "no accessible topology"},
		"the driver says nothing much": {place(), true, "without segments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := NewLocal("d", "n1", &csi.NodeGetInfoResponse{AccessibleTopology: tc.topology}).Warnings(tc.supported)
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)) {
				t.Errorf("warnings %q, want one with %q", got, tc.want)
			}
		})
	}
}

func TestManagedBy(t *testing.T) {
	t.Parallel()
	const base = "external-provisioner"
	for name, tc := range map[string]struct{ base, node, want string }{
		"central":        {base, "", base},
		"length 2":       {base, "n1", "external-provisioner-n1"},
		"length 8":       {base, "worker-1", "external-provisioner-worker-1"},
		"length 42":      {base, strings.Repeat("a", 42), "external-provisioner-" + strings.Repeat("a", 42)},
		"length 43":      {base, "ip-10-0-12-34.eu-central-1.compute.internal", "external-p-53f40b57-ip-10-0-12-34.eu-central-1.compute.internal"},
		"length 50":      {base, "node-0001.rack-17.row-b.dc-frankfurt-2.example.com", "ext-53f40b57-node-0001.rack-17.row-b.dc-frankfurt-2.example.com"},
		"length 52":      {base, strings.Repeat("b", 52), "e-53f40b57-" + strings.Repeat("b", 52)},
		"length 53":      {base, "node" + strings.Repeat("a", 49), "external-provisioner-a3607ff1"},
		"length 55":      {base, "node-0001.rack-17.row-b.dc-frankfurt-2.prod.example.com", "external-provisioner-71526af5"},
		"length 67":      {base, "node" + strings.Repeat("a", 63), "external-provisioner-df38e37f"},
		"no base":        {"", "n1", "n1"},
		"no base, short": {"", strings.Repeat("a", 63), strings.Repeat("a", 63)},
		"no base, long":  {"", "node" + strings.Repeat("a", 63), "fa65587e"},
		"nothing":        {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ManagedBy(tc.base, tc.node); got != tc.want {
				t.Errorf("ManagedBy = %q, want %q", got, tc.want)
			}
		})
	}
	for length := range 254 {
		if got := ManagedBy(base, strings.Repeat("x", length)); len(got) > 63 {
			t.Errorf("node of %d bytes: %d bytes", length, len(got))
		}
	}
}

func TestVerdictNames(t *testing.T) {
	t.Parallel()
	got := []string{NotOurs.String(), Owned.String(), Compete.String(), Verdict(9).String()}
	if diff := cmp.Diff([]string{"NotOurs", "Owned", "Compete", "invalid"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
