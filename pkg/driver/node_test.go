package driver

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// onNode returns a driver that says so of its node; without segments it reports no topology.
func onNode(id string, segments map[string]string) *fakeDriver {
	f := newFake("d")
	f.node = func(context.Context) (*csi.NodeGetInfoResponse, error) {
		info := &csi.NodeGetInfoResponse{NodeId: id}
		if segments != nil {
			info.AccessibleTopology = &csi.Topology{Segments: maps.Clone(segments)}
		}
		return info, nil
	}
	return f
}

func TestTheNodeIsAskedForOnlyWhereItCounts(t *testing.T) {
	t.Parallel()
	for _, counts := range []bool{false, true} {
		path, fake := socketFile(t), onNode("n", map[string]string{"host": "a"})
		fake.listen(t, path)
		d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Node: counts})
		if got := d.Identity().Node.GetAccessibleTopology().GetSegments()["host"]; (got == "a") != counts {
			t.Errorf("segment %q with Node %v", got, counts)
		}
		if got := fake.count("NodeGetInfo") == 1; got != counts {
			t.Errorf("NodeGetInfo was called: %v, want %v", got, counts)
		}
	}
}

func TestConnectNeedsTheNode(t *testing.T) {
	t.Parallel()
	path, fake := socketFile(t), newFake("d")
	fake.node = func(context.Context) (*csi.NodeGetInfoResponse, error) {
		return nil, status.Error(codes.Unavailable, "no metadata service")
	}
	fake.listen(t, path)
	got := within(t, "Connect", connecting(quiet(t), Config{Address: path, Timeout: time.Minute, Node: true}))
	if got.err == nil || !strings.Contains(got.err.Error(), `ask "d" about its node`) || !strings.Contains(got.err.Error(), "no metadata service") {
		t.Errorf("Connect: %v, want the driver's error", got.err)
	}
}

// A driver that comes back on another node, or with other labels of its node, is not gone on with: what was made of
// its topology at the start would be wrong.
func TestSuperviseComparesTheTopologyOfTheNode(t *testing.T) {
	t.Parallel()
	was := map[string]string{"zone": "a", "host": "h1"}
	for name, tc := range map[string]struct {
		central bool
		before  map[string]string
		after   *fakeDriver
		want    []string // phrases of the error; none: it goes on
	}{
		"the same":                    {before: was, after: onNode("n", was)},
		"another id":                  {before: was, after: onNode("n2", was)},
		"no topology, as before":      {after: onNode("n", nil)},
		"another value":               {before: was, after: onNode("n", map[string]string{"zone": "b", "host": "h1"}), want: []string{"the topology of its node was map[host:h1 zone:a] and is map[host:h1 zone:b]"}},
		"a key more":                  {before: was, after: onNode("n", map[string]string{"zone": "a", "host": "h1", "rack": "r"}), want: []string{"is map[host:h1 rack:r zone:a]"}},
		"a key less":                  {before: was, after: onNode("n", map[string]string{"zone": "a"}), want: []string{"is map[zone:a]"}},
		"no topology any more":        {before: was, after: onNode("n", nil), want: []string{"is none"}},
		"a topology without segments": {after: onNode("n", map[string]string{}), want: []string{"was none and is map[]"}},
		"another value, central":      {central: true, before: was, after: onNode("n", map[string]string{"zone": "b"})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			server := onNode("n", tc.before).listen(t, path)
			d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Node: !tc.central})
			ended := supervising(t, quiet(t), d)
			server.Stop()
			eventually(t, "the loss is noticed", func() bool { return !d.Ready() })
			tc.after.listen(t, path)
			if len(tc.want) == 0 {
				eventually(t, "the driver is back", d.Ready)
				return
			}
			err := within(t, "Supervise", ended)
			for _, want := range append(tc.want, path, "came back changed") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not contain %q", err, want)
				}
			}
		})
	}
}

// A driver that has just started may not know its node yet.
func TestSuperviseWaitsForTheNode(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	server := onNode("n", map[string]string{"zone": "a"}).listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Node: true})
	supervising(t, quiet(t), d)
	server.Stop()
	eventually(t, "the loss is noticed", func() bool { return !d.Ready() })
	back := onNode("n", map[string]string{"zone": "a"})
	know := back.node
	back.node = func(ctx context.Context) (*csi.NodeGetInfoResponse, error) {
		if back.count("NodeGetInfo") == 1 {
			return nil, status.Error(codes.Unavailable, "starting")
		}
		return know(ctx)
	}
	back.listen(t, path)
	eventually(t, "the driver is back", d.Ready)
}
