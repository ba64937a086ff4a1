// Package image stores container images: it pulls them from registries, imports them from
// archives, unpacks their layers for overlayfs and removes the images that nobody holds.
//
// On disk, below the folder passed to Open:
//
//	lock                    held by the process that has the store open
//	refs.json               record: every tag and digest reference → image ID
//	refs.copy.json          the same, read when the other cannot be read
//	images/<hex>.json       record: one image (its layers by chain ID, its config)
//	images/<hex>.config     the original config: its digest is the image's ID
//	layers/<id>/fs          one unpacked layer, a lowerdir of overlayfs
//	layers/<id>/tar.json.gz the rest of the layer's tar, for Export
//	layers/<id>/meta.json   record: chain ID, diff ID, sizes
//	ingest/                 half-unpacked and removed layers; emptied by Open
//
// A layer is unpacked below ingest while it downloads, and renamed into place when it is
// complete. An image's record is written when all its layers are present and on the disk; its
// references come last. So a crash at any moment leaves only what Open sweeps away, and a pull
// that fails cleans up after itself. A record that cannot be read costs at most one image, until
// that is pulled or imported again.
//
// Registries are reached the way containerd reaches them: certs.d with hosts.toml, tokens,
// mirrors.
//
// Within a node, the CRI server is the store's only caller; `wherry image` opens the store itself
// if no node has it open.
package image
