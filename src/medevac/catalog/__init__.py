"""What is known about fault codes, as data: the tables beside this file, their shapes and their loader."""

from medevac.catalog.load import Catalog, load_catalog
from medevac.catalog.schema import Bucket, CatalogError, SxidEntry, XidEntry

__all__ = ["Bucket", "Catalog", "CatalogError", "SxidEntry", "XidEntry", "load_catalog"]
