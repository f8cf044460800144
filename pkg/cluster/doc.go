// Package cluster is the way to the API server: clients with their limits, trimmed
// caches with their indexes, safe writes, events, the owner walk and discovery.
// A rest.Config and the driver's name go in; typed objects, all of them read-only, come out.
// It never writes an object from a cache, never patches a claim and never lets a read error look like "nothing there".
package cluster
