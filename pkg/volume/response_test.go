package volume

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

func TestCheckResponse(t *testing.T) {
	t.Parallel()
	snapshot := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snap"}}}
	clone := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "vol"}}}
	answer := func(id string, size int64, content *csi.VolumeContentSource) *csi.CreateVolumeResponse {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size, ContentSource: content}}
	}
	for name, tc := range map[string]struct {
		required int64
		content  *csi.VolumeContentSource
		resp     *csi.CreateVolumeResponse
		wantErr  string // "" = good
		wantID   string
	}{
		"as requested":                        {required: 1000, resp: answer("v", 1000, nil)},
		"one byte more":                       {required: 1000, resp: answer("v", 1001, nil)},
		"one byte less":                       {required: 1000, resp: answer("v", 999, nil), wantErr: "capacity 999 less than requested capacity 1000", wantID: "v"},
		"no size is fine":                     {required: 1000, resp: answer("v", 0, nil)},
		"nothing was asked for":               {resp: answer("v", 1, nil)},
		"a negative size":                     {required: 1000, resp: answer("v", -5, nil), wantErr: "negative capacity of -5 bytes, requested 1000", wantID: "v"},
		"a negative size where none is asked": {resp: answer("v", -1, nil), wantErr: "negative capacity", wantID: "v"},
		"no answer":                           {required: 1000, wantErr: "driver returned no volume"},
		"no volume":                           {required: 1000, resp: &csi.CreateVolumeResponse{}, wantErr: "driver returned no volume"},
		"no id, whatever else is wrong":       {required: 1000, content: clone, resp: answer("", 1, nil), wantErr: "empty id"},
		"the content as requested":            {content: snapshot, resp: answer("v", 0, snapshot)},
		"content of another type is let pass": {content: snapshot, resp: answer("v", 0, clone)},
		"empty content is let pass":           {content: clone, resp: answer("v", 0, &csi.VolumeContentSource{})},
		"content that nobody asked for":       {resp: answer("v", 0, clone)},
		"no content although requested":       {content: snapshot, resp: answer("v", 0, nil), wantErr: "volume content source missing", wantID: "v"},
		"the size is looked at before the content": {
			required: 1000, content: clone, resp: answer("v", 10, nil), wantErr: "less than requested", wantID: "v",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := &csi.CreateVolumeRequest{CapacityRange: &csi.CapacityRange{RequiredBytes: tc.required}, VolumeContentSource: tc.content}
			err := CheckResponse(req, tc.resp)
			if tc.wantErr == "" {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			bad, ok := errors.AsType[*BadResponse](err)
			if !ok {
				t.Fatalf("error %v (%T), want a *BadResponse", err, err)
			}
			if !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %q does not mention %q", err, tc.wantErr)
			}
			if bad.VolumeID != tc.wantID {
				t.Errorf("volume to delete %q, want %q", bad.VolumeID, tc.wantID)
			}
			if got := outcome.Of(err); got != outcome.Background {
				t.Errorf("outcome %s, want Background", got)
			}
			cleaned := outcome.WithSlow(outcome.Failed, fmt.Errorf("claim ns/c: %w", err))
			if outcome.Of(cleaned) != outcome.Failed || !outcome.Slow(cleaned) {
				t.Errorf("after the clean-up: %s, slow %v; want Failed and slow", outcome.Of(cleaned), outcome.Slow(cleaned))
			}
		})
	}
}
