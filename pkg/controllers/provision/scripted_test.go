package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// answer is what the driver does with one call.
type answer struct {
	// after is how long the call takes.
	after time.Duration
	// code is what is answered; OK makes the volume.
	code codes.Code
	// made says that the volume is made, whatever is answered.
	made bool
	// plain answers an error without a gRPC status.
	plain bool
	// cutOff says that gRPC made the error after the call was sent, unsent that it did so before.
	cutOff, unsent bool
	// edit, if not nil, changes a good answer.
	edit func(*csi.Volume)
}

// moment is one call as the driver saw it, at a time since the world began.
type moment struct {
	at   time.Duration
	name string // of CreateVolume
	id   string // of DeleteVolume
	req  *csi.CreateVolumeRequest
	keys []string // of the secrets
}

// scripted is a driver that answers as it is told, and OK after that.
type scripted struct {
	mu      sync.Mutex
	begin   time.Time
	script  []answer // of CreateVolume
	deletes []answer // of DeleteVolume
	creates []moment
	deleted []moment
	volumes map[string]bool // name → exists
	running map[string]int  // id of the volume that is cloned → calls at this moment
	most    map[string]int  // the same → most calls at any moment
}

func (d *scripted) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	defer d.enter(req.GetVolumeContentSource().GetVolume().GetVolumeId())()
	next := d.next(&d.script, func(m *moment) { m.name, m.req, m.keys = req.GetName(), req, sortedKeys(req.GetSecrets()) }, &d.creates)
	err := d.answer(ctx, next)
	if err == nil || next.made {
		d.mu.Lock()
		d.volumes[req.GetName()] = true
		d.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	vol := &csi.Volume{VolumeId: "id-of-" + req.GetName(), CapacityBytes: req.GetCapacityRange().GetRequiredBytes(), ContentSource: req.GetVolumeContentSource()}
	if next.edit != nil {
		next.edit(vol)
	}
	return &csi.CreateVolumeResponse{Volume: vol}, nil
}

func (d *scripted) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) error {
	next := d.next(&d.deletes, func(m *moment) { m.id, m.keys = req.GetVolumeId(), sortedKeys(req.GetSecrets()) }, &d.deleted)
	err := d.answer(ctx, next)
	if err == nil || next.made {
		d.mu.Lock()
		delete(d.volumes, strings.TrimPrefix(req.GetVolumeId(), "id-of-"))
		d.mu.Unlock()
	}
	return err
}

// enter counts a call for a clone of the volume until the returned function is called.
func (d *scripted) enter(of string) (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running, d.most = map[string]int{}, map[string]int{}
	}
	d.running[of]++
	d.most[of] = max(d.most[of], d.running[of])
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running[of]--
	}
}

// mostFrom returns how many calls for clones of the volume ran at once.
func (d *scripted) mostFrom(of string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most[of]
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (d *scripted) next(script *[]answer, fill func(*moment), record *[]moment) answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := moment{at: time.Since(d.begin)}
	fill(&m)
	*record = append(*record, m)
	if len(*script) == 0 {
		return answer{}
	}
	next := (*script)[0]
	*script = (*script)[1:]
	return next
}

func (d *scripted) answer(ctx context.Context, next answer) error {
	select {
	case <-time.After(next.after):
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	switch {
	case next.plain:
		return fmt.Errorf("no status")
	case next.cutOff:
		return outcome.WithoutAnswer(status.Error(next.code, "made by gRPC"))
	case next.unsent:
		return outcome.With(outcome.Unchanged, status.Error(next.code, "made by gRPC"))
	case next.code != codes.OK:
		return status.Error(next.code, "as told")
	}
	return nil
}

// at returns when CreateVolume was called, in whole seconds.
func (d *scripted) at() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	var seconds []int
	for _, m := range d.creates {
		seconds = append(seconds, int(m.at.Round(time.Second)/time.Second))
	}
	return seconds
}

func (d *scripted) answers(script ...answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script = script
}

func (d *scripted) createCalls() []moment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.creates)
}

func (d *scripted) deleteCalls() []moment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.deleted)
}

func (d *scripted) volumeCount() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.volumes)
}
