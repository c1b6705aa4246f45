"""Declares the parts of PJRT's C API that compiling needs, as ctypes structures.

Layouts are those of `pjrt_c_api.h`, version 0.40. The API only ever grows: functions are added at
the end of the table, members at the end of structures, each of which begins with its own size.
"""

import ctypes

_HANDLE = ctypes.c_void_p
_SIZE = ctypes.c_size_t

# In the header's order: an entry's position is its meaning.
_FUNCTIONS = (
    *("Error_Destroy", "Error_Message", "Error_GetCode"),
    *("Plugin_Initialize", "Plugin_Attributes"),
    *("Event_Destroy", "Event_IsReady", "Event_Error", "Event_Await", "Event_OnReady"),
    *("Client_Create", "Client_Destroy", "Client_PlatformName", "Client_ProcessIndex"),
    *("Client_PlatformVersion", "Client_Devices", "Client_AddressableDevices"),
    *("Client_LookupDevice", "Client_LookupAddressableDevice", "Client_AddressableMemories"),
    *("Client_Compile", "Client_DefaultDeviceAssignment", "Client_BufferFromHostBuffer"),
    *("DeviceDescription_Id", "DeviceDescription_ProcessIndex", "DeviceDescription_Attributes"),
    *("DeviceDescription_Kind", "DeviceDescription_DebugString", "DeviceDescription_ToString"),
    *("Device_GetDescription", "Device_IsAddressable", "Device_LocalHardwareId"),
    *("Device_AddressableMemories", "Device_DefaultMemory", "Device_MemoryStats"),
    *("Memory_Id", "Memory_Kind", "Memory_DebugString", "Memory_ToString"),
    "Memory_AddressableByDevices",
    *("Executable_Destroy", "Executable_Name", "Executable_NumReplicas"),
    *("Executable_NumPartitions", "Executable_NumOutputs"),
    *("Executable_SizeOfGeneratedCodeInBytes", "Executable_GetCostAnalysis"),
    *("Executable_OutputMemoryKinds", "Executable_OptimizedProgram", "Executable_Serialize"),
    *("LoadedExecutable_Destroy", "LoadedExecutable_GetExecutable"),
    *("LoadedExecutable_AddressableDevices", "LoadedExecutable_Delete"),
    *("LoadedExecutable_IsDeleted", "LoadedExecutable_Execute"),
    *("Executable_DeserializeAndLoad", "LoadedExecutable_Fingerprint"),
    *("Buffer_Destroy", "Buffer_ElementType", "Buffer_Dimensions", "Buffer_UnpaddedDimensions"),
    *("Buffer_DynamicDimensionIndices", "Buffer_GetMemoryLayout", "Buffer_OnDeviceSizeInBytes"),
    *("Buffer_Device", "Buffer_Memory", "Buffer_Delete", "Buffer_IsDeleted"),
    *("Buffer_CopyToDevice", "Buffer_ToHostBuffer", "Buffer_IsOnCpu", "Buffer_ReadyEvent"),
    *("Buffer_UnsafePointer", "Buffer_IncreaseExternalReferenceCount"),
    *("Buffer_DecreaseExternalReferenceCount", "Buffer_OpaqueDeviceMemoryDataPointer"),
    *("CopyToDeviceStream_Destroy", "CopyToDeviceStream_AddChunk"),
    *("CopyToDeviceStream_TotalBytes", "CopyToDeviceStream_GranuleSize"),
    "CopyToDeviceStream_CurrentBytes",
    *("TopologyDescription_Create", "TopologyDescription_Destroy"),
    *("TopologyDescription_PlatformName", "TopologyDescription_PlatformVersion"),
    *("TopologyDescription_GetDeviceDescriptions", "TopologyDescription_Serialize"),
    *("TopologyDescription_Attributes", "Compile"),
    *("Executable_OutputElementTypes", "Executable_OutputDimensions", "Buffer_CopyToMemory"),
    *("Client_CreateViewOfDeviceBuffer", "Executable_Fingerprint", "Client_TopologyDescription"),
    "Executable_GetCompiledMemoryStats",
)

_ERROR_CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)


class PjrtError(RuntimeError):
    """The plug-in's error when it rejects a call; its code is a name, such as `"RESOURCE_EXHAUSTED"`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class _Call(ctypes.Structure):
    """A call's arguments: its size, an extension point, and its own members."""

    _fields_ = [("struct_size", _SIZE), ("extension_start", _HANDLE)]


class _Error(_Call):
    _fields_ = [("error", _HANDLE)]


class _ErrorMessage(_Call):
    _fields_ = [("error", _HANDLE), ("message", _HANDLE), ("message_size", _SIZE)]


class _ErrorCode(_Call):
    _fields_ = [("error", _HANDLE), ("code", ctypes.c_int)]


class Initialize(_Call):
    """Initializes the plug-in."""

    _fields_ = []


class _Value(ctypes.Union):
    _fields_ = [
        ("string", _HANDLE),
        ("int64", ctypes.c_int64),
        ("int64s", ctypes.POINTER(ctypes.c_int64)),
        ("float", ctypes.c_float),
        ("bool", ctypes.c_bool),
    ]


class NamedValue(_Call):
    """An option or an attribute: a name and a string, number or list of numbers."""

    _fields_ = [
        ("name", _HANDLE),
        ("name_size", _SIZE),
        ("type", ctypes.c_int),
        ("value", _Value),
        ("value_size", _SIZE),
    ]

    STRING, INT64, INT64_LIST, FLOAT, BOOL = range(5)


class CreateTopology(_Call):
    """Describes a slice of TPU chips by its name."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("name_size", _SIZE),
        ("options", ctypes.POINTER(NamedValue)),
        ("num_options", _SIZE),
        ("topology", _HANDLE),
    ]


class TopologyDevices(_Call):
    """Lists the devices of a topology."""

    _fields_ = [
        ("topology", _HANDLE),
        ("descriptions", ctypes.POINTER(_HANDLE)),
        ("num_descriptions", _SIZE),
    ]


class DeviceId(_Call):
    """Gets a device's number."""

    _fields_ = [("description", _HANDLE), ("id", ctypes.c_int)]


class Program(_Call):
    """A program in some format, such as `hlo`."""

    _fields_ = [
        ("code", _HANDLE),
        ("code_size", _SIZE),
        ("format", _HANDLE),
        ("format_size", _SIZE),
    ]


class Compile(_Call):
    """Compiles a program for a topology; no device is needed."""

    _fields_ = [
        ("topology", _HANDLE),
        ("program", ctypes.POINTER(Program)),
        ("options", ctypes.c_char_p),
        ("options_size", _SIZE),
        ("client", _HANDLE),
        ("executable", _HANDLE),
    ]


class CostAnalysis(_Call):
    """Gets the compiler's cost estimate of an executable."""

    _fields_ = [
        ("executable", _HANDLE),
        ("num_properties", _SIZE),
        ("properties", ctypes.POINTER(NamedValue)),
    ]


class MemoryStats(_Call):
    """Gets the HBM that an executable needs."""

    _fields_ = [
        ("executable", _HANDLE),
        ("generated_code", ctypes.c_int64),
        ("argument", ctypes.c_int64),
        ("output", ctypes.c_int64),
        ("alias", ctypes.c_int64),
        ("temp", ctypes.c_int64),
    ]


class LongMemoryStats(MemoryStats):
    """The same for newer plug-ins, which reject the shorter form."""

    _fields_ = [("host", ctypes.c_int64 * 5), ("peak", ctypes.c_int64), ("total", ctypes.c_int64)]


class OptimizedProgram(_Call):
    """Gets the optimized program of an executable."""

    _fields_ = [("executable", _HANDLE), ("program", ctypes.POINTER(Program))]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension_start", _HANDLE),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", _SIZE),
        ("extension_start", _HANDLE),
        ("version", _Version),
        *((name, _HANDLE) for name in _FUNCTIONS),
    ]


class PjrtPlugin:
    """A loaded plug-in, ready for calls."""

    def __init__(self, path: str) -> None:
        """Loads the library."""
        # Kept, since the library contains the table of functions.
        self._library = ctypes.CDLL(path)
        get_api = self._library.GetPjrtApi
        get_api.restype = ctypes.POINTER(_Api)
        self._api = get_api().contents
        self.call("Plugin_Initialize", Initialize())

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of its API."""
        return self._api.version.major, self._api.version.minor

    def call(self, function: str, arguments: _Call) -> None:
        """Calls a function of the table."""
        # An older plug-in's table is shorter than `_Api`: reading an entry beyond its end would call arbitrary memory.
        offset = getattr(_Api, function).offset
        if offset + ctypes.sizeof(_HANDLE) > self._api.struct_size:
            major, minor = self.version
            raise PjrtError(
                "UNIMPLEMENTED", f"PJRT_{function} is not in API version {major}.{minor}"
            )
        error = self._call(function, arguments)
        if error:
            raise self._as_exception(error)

    def _call(self, function: str, arguments: _Call) -> int | None:
        arguments.struct_size = ctypes.sizeof(arguments)
        entry = ctypes.CFUNCTYPE(_HANDLE, _HANDLE)(getattr(self._api, function))
        return entry(ctypes.addressof(arguments))

    def _as_exception(self, error: int) -> PjrtError:
        text, code = _ErrorMessage(error=error), _ErrorCode(error=error)
        self._call("Error_Message", text)
        self._call("Error_GetCode", code)
        message = ctypes.string_at(text.message, text.message_size).decode(errors="replace")
        self._call("Error_Destroy", _Error(error=error))
        known = 0 <= code.code < len(_ERROR_CODES)
        return PjrtError(_ERROR_CODES[code.code] if known else f"CODE_{code.code}", message)
